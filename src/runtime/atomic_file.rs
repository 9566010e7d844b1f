//! Files that are complete or not there, and that only their owner can read.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

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
    fn bare_file_name_is_in_the_current_folder() {
        assert_eq!(folder_of(Path::new("backup.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("./backup.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/b.db")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/b.db")), Path::new("/"));
        assert!(sync_folder(folder_of(Path::new("backup.db"))).is_ok());
    }
}
