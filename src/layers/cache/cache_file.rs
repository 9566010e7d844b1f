//! The snapshot file of a cache.
//!
//! Numbers are little-endian:
//! ```text
//! "actix-etcd cache 1\n" │ cluster id u64 │ revision i64 │ time of saving in ms u64 │ 1 if a prefix, else 0: u8
//! │ key length u32 │ key or prefix with namespace │ number of entries u64 │ { length u32 │ entry } … │ SHA-256 of all before
//! ```

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sha2::{Digest, Sha256};

use super::{
    CacheEntry, CacheSnapshot, cached_range::CachedRange, entry_tree::EntryTree,
    range_load::check_memory,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    runtime::atomic_file::AtomicFile,
};

const FORMAT: &[u8] = b"actix-etcd cache ";
const VERSION: &[u8] = b"1\n";
const CHECKSUM: usize = 32;

/// The content of a snapshot file.
#[derive(Debug, Clone)]
pub(crate) struct SavedState {
    pub(crate) snapshot: CacheSnapshot,
    pub(crate) saved: SystemTime,
}

/// What a file must contain to be used.
#[derive(Debug, Clone)]
pub(crate) struct FileCheck {
    pub(crate) range: CachedRange,
    /// The range with the namespace of the client.
    pub(crate) sent_range: CachedRange,
    /// `None` if the cluster is not known yet.
    pub(crate) cluster: Option<u64>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_bytes: usize,
}

/// Writes a file that only its owner can read, and replaces an older one when it is complete. The range is that with the
/// namespace of the client.
pub(crate) fn write_file(path: &Path, sent: &CachedRange, state: &SavedState) -> Result<()> {
    write(path, sent, state).map_err(|error| {
        let text = format!(
            "the snapshot file {} cannot be written: {error}",
            path.display()
        );
        Error::new(ErrorKind::FileFailed, Outcome::NotSent, text).with_source(error)
    })
}

fn write(path: &Path, sent: &CachedRange, state: &SavedState) -> io::Result<()> {
    let mut file = HashingWriter {
        file: BufWriter::new(AtomicFile::create(path)?),
        hash: Sha256::new(),
    };
    file.put(FORMAT)?;
    file.put(VERSION)?;
    file.put(&state.snapshot.cluster.to_le_bytes())?;
    file.put(&state.snapshot.revision.to_le_bytes())?;
    let saved = state.saved.duration_since(UNIX_EPOCH).unwrap_or_default();
    let saved = u64::try_from(saved.as_millis()).unwrap_or_default();
    file.put(&saved.to_le_bytes())?;
    file.put(&[u8::from(sent.is_prefix())])?;
    file.put_bytes(sent.key())?;
    file.put(&(state.snapshot.len() as u64).to_le_bytes())?;
    for entry in &state.snapshot {
        file.put_bytes(entry.encoded())?;
    }
    let HashingWriter { mut file, hash } = file;
    file.write_all(&hash.finalize())?;
    file.into_inner()?.commit()
}

struct HashingWriter {
    file: BufWriter<AtomicFile>,
    hash: Sha256,
}

impl HashingWriter {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.file.write_all(bytes)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(bytes)
    }
}

/// Reads a file. Returns `None` if there is none, and fails with the reason if it must not be used.
pub(crate) fn read_file(path: &Path, check: &FileCheck) -> Result<Option<SavedState>> {
    // Whatever cannot be removed takes space only. A folder that does not exist is reported by the first write.
    let _ = AtomicFile::remove_old_parts(path);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened,
    };
    let state = file
        .map_err(|error| error.to_string())
        .and_then(|file| read(file, check));
    state.map(Some).map_err(|reason| {
        let text = format!("the snapshot file {} was ignored: {reason}", path.display());
        Error::new(ErrorKind::FileFailed, Outcome::NotSent, text)
    })
}

fn read(file: File, check: &FileCheck) -> Result<SavedState, String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut file = HashingReader {
        rest: length.saturating_sub(CHECKSUM as u64),
        file: BufReader::new(file),
        hash: Sha256::new(),
    };
    if file.take_vec(FORMAT.len())? != FORMAT {
        return Err("it is not the snapshot file of a cache".to_owned());
    }
    if file.take_vec(VERSION.len())? != VERSION {
        return Err("it was written by another version of this crate".to_owned());
    }
    let cluster = u64::from_le_bytes(file.take()?);
    let revision = i64::from_le_bytes(file.take()?);
    let saved = UNIX_EPOCH.checked_add(Duration::from_millis(u64::from_le_bytes(file.take()?)));
    let saved = saved.ok_or("its time is not valid")?;
    let is_prefix = file.take::<1>()? == [1];
    let key = file.take_bytes()?;
    let count = u64::from_le_bytes(file.take()?);
    if is_prefix != check.sent_range.is_prefix() || key != *check.sent_range.key() {
        return Err(format!(
            "it is the file of another cache, for `{}`",
            key.escape_ascii()
        ));
    }
    if let Some(expected) = check.cluster
        && cluster != expected
        && cluster != 0
    {
        return Err(format!(
            "it belongs to the cluster {cluster:x}, and the client is connected to {expected:x}"
        ));
    }
    if let Some(max_age) = check.max_age {
        let age = saved.elapsed();
        let age = age.map_err(|_| "its age is unknown: its time is in the future")?;
        if age > max_age {
            return Err(format!(
                "it is {age:?} old, and at most {max_age:?} are allowed"
            ));
        }
    }
    let tree = read_entries(&mut file, count, check)?;
    let hash = file.hash.finalize();
    let mut checksum = Vec::new();
    file.file
        .read_to_end(&mut checksum)
        .map_err(|error| error.to_string())?;
    if checksum != hash[..] {
        return Err(BROKEN.to_owned());
    }
    Ok(SavedState {
        snapshot: CacheSnapshot {
            tree,
            revision,
            cluster,
        },
        saved,
    })
}

const BROKEN: &str = "it is broken: its checksum is wrong";

fn read_entries(
    file: &mut HashingReader,
    count: u64,
    check: &FileCheck,
) -> Result<EntryTree, String> {
    let mut tree = EntryTree::default();
    for _ in 0..count {
        let encoded = file.take_bytes()?;
        let entry = CacheEntry::from_encoded(&encoded).ok_or(BROKEN)?;
        if !check.range.contains(entry.key()) {
            return Err(BROKEN.to_owned());
        }
        tree.insert(entry);
        check_memory(tree.memory(), check.max_bytes).map_err(|error| error.to_string())?;
    }
    Ok(tree)
}

struct HashingReader {
    file: BufReader<File>,
    hash: Sha256,
    /// Bytes before the checksum that were not read yet.
    rest: u64,
}

impl HashingReader {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn take_bytes(&mut self) -> Result<Vec<u8>, String> {
        let length = u32::from_le_bytes(self.take()?);
        self.take_vec(length as usize)
    }

    fn take_vec(&mut self, length: usize) -> Result<Vec<u8>, String> {
        // Checked before the allocation: the length may be wrong.
        if length as u64 > self.rest {
            return Err("it is broken: it is too short".to_owned());
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        let length = bytes.len() as u64;
        self.rest = self
            .rest
            .checked_sub(length)
            .ok_or("it is broken: it is too short")?;
        self.file
            .read_exact(bytes)
            .map_err(|error| error.to_string())?;
        self.hash.update(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

    use super::*;
    use crate::kv::KeyValue;

    fn path() -> PathBuf {
        std::env::temp_dir().join(format!("actix-etcd-{:016x}.cache", fastrand::u64(..)))
    }

    fn check() -> FileCheck {
        FileCheck {
            range: CachedRange::Prefix("k/".into()),
            sent_range: CachedRange::Prefix("tenant/k/".into()),
            cluster: Some(7),
            max_age: Some(Duration::from_secs(60)),
            max_bytes: 1 << 20,
        }
    }

    fn state() -> SavedState {
        let mut tree = EntryTree::default();
        for number in 0..100 {
            let kv = KeyValue {
                key: format!("k/{number}").into(),
                value: "value".into(),
                mod_revision: number,
                ..KeyValue::default()
            };
            tree.insert(CacheEntry::new(&kv, &mut Vec::new()));
        }
        SavedState {
            snapshot: CacheSnapshot {
                tree,
                revision: 9,
                cluster: 7,
            },
            saved: SystemTime::now(),
        }
    }

    fn reason(path: &Path, check: &FileCheck) -> String {
        read_file(path, check).unwrap_err().to_string()
    }

    #[test]
    fn private_file_has_the_whole_state() {
        let path = path();
        write_file(&path, &check().sent_range, &state()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = read_file(&path, &check()).unwrap().unwrap();
        assert_eq!(read.snapshot.revision, 9);
        assert!(read.snapshot.iter().eq(state().snapshot.iter()));
        fs::remove_file(&path).unwrap();
        assert!(read_file(&path, &check()).unwrap().is_none());
    }

    #[test]
    fn any_changed_or_missing_byte_is_detected() {
        let path = path();
        write_file(&path, &check().sent_range, &state()).unwrap();
        let bytes = fs::read(&path).unwrap();
        for index in (0..bytes.len()).step_by(3) {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(read_file(&path, &check()).is_err(), "byte {index}");
            fs::write(&path, &bytes[..index]).unwrap();
            assert!(read_file(&path, &check()).is_err(), "cut at {index}");
        }
        fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
        assert!(reason(&path, &check()).contains("broken"));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn foreign_and_old_files_are_ignored_with_the_reason() {
        let path = path();
        write_file(&path, &check().sent_range, &state()).unwrap();
        let other_range = FileCheck {
            sent_range: CachedRange::Prefix("other/k/".into()),
            ..check()
        };
        assert!(reason(&path, &other_range).contains("another cache, for `tenant/k/`"));
        let other_cluster = FileCheck {
            cluster: Some(8),
            ..check()
        };
        assert!(reason(&path, &other_cluster).contains("cluster 7"));
        let too_large = FileCheck {
            max_bytes: 1000,
            ..check()
        };
        assert!(reason(&path, &too_large).contains("`max_bytes`"));
        let old = SavedState {
            saved: SystemTime::now() - Duration::from_secs(61),
            ..state()
        };
        write_file(&path, &check().sent_range, &old).unwrap();
        assert!(reason(&path, &check()).contains("old"));
        let of_the_future = SavedState {
            saved: SystemTime::now() + Duration::from_secs(3600),
            ..state()
        };
        write_file(&path, &check().sent_range, &of_the_future).unwrap();
        assert!(reason(&path, &check()).contains("future"));
        let any_age = FileCheck {
            max_age: None,
            ..check()
        };
        assert!(read_file(&path, &any_age).is_ok());
        fs::remove_file(&path).unwrap();
    }
}
