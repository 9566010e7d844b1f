//! Files that are complete or not there, and that only their owner can read.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Unfinished files that nothing was written to for so long belong to a process that was killed.
const OLD_PART: Duration = Duration::from_secs(60);

/// A file that is written beside its target and replaces it when it is complete. Removed when dropped before.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    file: fs::File,
    part: PartPath,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates the file beside the target. Only its owner can read it: it contains keys and values.
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        let part = PartPath::new(target)?;
        let mut options = fs::OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part.0)?;
        Ok(Self {
            file,
            part,
            target: target.to_owned(),
        })
    }

    /// Removes what writes of this target have left behind because their process was killed.
    pub(crate) fn remove_old_parts(target: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder_of(target))? {
            let entry = entry?;
            if !is_part(&entry.file_name(), target) {
                continue;
            }
            // A file that is gone was renamed or removed by its writer.
            let Ok(modified) = entry.metadata().and_then(|data| data.modified()) else {
                continue;
            };
            if modified.elapsed().is_ok_and(|age| age > OLD_PART) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes the file to the disk and replaces the target by it.
    pub(crate) fn commit(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.part.0, &self.target)?;
        // The rename is durable only after the folder is synced.
        sync_folder(folder_of(&self.target))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns whether this is the name of an unfinished file of the target.
fn is_part(name: &OsStr, target: &Path) -> bool {
    let random = || {
        let rest = name
            .as_bytes()
            .strip_prefix(target.file_name()?.as_bytes())?;
        rest.strip_prefix(b".")?.strip_suffix(b".part")
    };
    random().is_some_and(|random| random.len() == 8 && random.iter().all(u8::is_ascii_hexdigit))
}

/// Returns the folder of a file; the current folder if the path has none.
fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// Path of a temporary file beside the target. Removes the file when dropped, unless it was renamed.
#[derive(Debug)]
struct PartPath(PathBuf);

impl PartPath {
    fn new(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name")
        })?;
        let mut part = name.to_owned();
        // Random, so that two writers of one path do not share a file.
        part.push(format!(".{:08x}.part", fastrand::u32(..)));
        Ok(Self(target.with_file_name(part)))
    }
}

impl Drop for PartPath {
    fn drop(&mut self) {
        // Fails if the file was renamed.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_unfinished_files_of_the_target_are_removed() {
        let name = format!("actix-etcd-parts-{:016x}", fastrand::u64(..));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let old = std::time::SystemTime::now() - 2 * OLD_PART;
        let create = |name: &str, is_old: bool| {
            let file = fs::File::create(folder.join(name)).unwrap();
            if is_old {
                file.set_modified(old).unwrap();
            }
        };
        create("file.0123abcd.part", true);
        let kept = [
            ("file", true),
            ("file.0123abce.part", false),
            ("file.other.part", true),
            ("other.0123abcd.part", true),
        ];
        for (name, is_old) in kept {
            create(name, is_old);
        }
        AtomicFile::remove_old_parts(&folder.join("file")).unwrap();
        assert!(!folder.join("file.0123abcd.part").exists());
        for (name, _) in kept {
            assert!(folder.join(name).exists(), "{name}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn bare_file_name_is_in_the_current_folder() {
        assert_eq!(folder_of(Path::new("backup.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("./backup.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/b.db")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/b.db")), Path::new("/"));
        assert!(sync_folder(folder_of(Path::new("backup.db"))).is_ok());
    }
}
