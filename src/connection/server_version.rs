//! The version of etcd that a member runs, and the faults that depend on it.

/// Version of a member, from its response to `Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl ServerVersion {
    /// Parses a version such as `3.5.12` or `3.7.0-rc.0`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let release = text.split(['-', '+']).next()?;
        let mut numbers = release.split('.').map(|number| number.parse().ok());
        Some(Self {
            major: numbers.next()??,
            minor: numbers.next()??,
            patch: numbers.next()??,
        })
    }

    /// Returns whether requested watch progress arrives after all events that it covers. Before 3.4.25 and 3.5.8 it
    /// could overtake them (etcd issue 15220).
    pub(crate) fn orders_requested_progress(self) -> bool {
        let first_patch = match (self.major, self.minor) {
            (3, 4) => 25,
            (3, 5) => 8,
            (major, minor) => return (major, minor) > (3, 5),
        };
        self.patch >= first_patch
    }
}

#[cfg(test)]
mod tests {
    use super::ServerVersion;

    #[test]
    fn only_complete_versions_are_parsed() {
        let version = ServerVersion {
            major: 3,
            minor: 5,
            patch: 12,
        };
        for text in ["3.5.12", "3.5.12-rc.1", "3.5.12+git"] {
            assert_eq!(ServerVersion::parse(text), Some(version), "{text}");
        }
        for text in ["", "3.5", "3.5.x", "unknown"] {
            assert_eq!(ServerVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn progress_order_depends_on_patch_release() {
        let is_ordered = |text| {
            ServerVersion::parse(text)
                .unwrap()
                .orders_requested_progress()
        };
        for fixed in ["3.4.25", "3.5.8", "3.6.0", "3.7.0-alpha.0", "4.0.0"] {
            assert!(is_ordered(fixed), "{fixed}");
        }
        for faulty in ["3.3.27", "3.4.24", "3.5.0", "3.5.7"] {
            assert!(!is_ordered(faulty), "{faulty}");
        }
    }
}
