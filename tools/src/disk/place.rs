//! Where the files of a qualification are: in a directory of their own.
//!
//! Kept true: nothing outside that directory is changed, and it is gone when
//! the place is dropped; nothing is begun where there is too little room.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use crate::disk::DiskError;
use crate::disk::stop::Stop;
use crate::output::{say, size};

/// What must stay free beside what is needed.
const SPARE_BYTES: u64 = 64 << 20;
/// How often a directory is removed again that was not empty after all.
const REMOVED_AGAIN_MAX: usize = 3;

/// A directory that goes.
pub(crate) struct Place {
    dir: PathBuf,
    stop: Stop,
}

impl Place {
    /// Makes a directory in `parent`, if that has room for `bytes`.
    pub(crate) fn in_dir(parent: &Path, bytes: u64, stop: &Stop) -> Result<Self, DiskError> {
        check_dir(parent)?;
        check_writable(parent)?;
        let free = free_bytes(parent)?;
        let needed = bytes + SPARE_BYTES;
        if free < needed {
            return Err(DiskError::Space(
                parent.to_owned(),
                size(free),
                size(needed),
            ));
        }
        let dir = parent.join(format!(".pontoon-qualify-{}", std::process::id()));
        // Known before it is there, so that it goes whenever the process does.
        stop.owns(Some(&dir));
        if let Err(error) = std::fs::create_dir(&dir) {
            stop.owns(None);
            return Err(DiskError::at(parent, error));
        }
        Ok(Self {
            dir,
            stop: stop.clone(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A log that nobody waited for may be making a file right now.
        let mut removed = std::fs::remove_dir_all(&self.dir);
        for _ in 0..REMOVED_AGAIN_MAX {
            match &removed {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    removed = std::fs::remove_dir_all(&self.dir);
                }
                _ => break,
            }
        }
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            say(&format!(
                "pontoonctl: {} could not be removed ({error}): remove it yourself",
                self.dir.display()
            ));
        }
        self.stop.owns(None);
    }
}

pub(crate) fn check_dir(dir: &Path) -> Result<(), DiskError> {
    let found = std::fs::metadata(dir).map_err(|error| DiskError::at(dir, error))?;
    if !found.is_dir() {
        return Err(DiskError::NotADirectory(dir.to_owned()));
    }
    Ok(())
}

/// Says in words what would fail later, or look like a full disk.
fn check_writable(dir: &Path) -> Result<(), DiskError> {
    let found = rustix::fs::statvfs(dir).map_err(|error| DiskError::at(dir, error.into()))?;
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(DiskError::ReadOnly(dir.to_owned()));
    }
    if found.f_blocks == 0 {
        return Err(DiskError::NoDisk(dir.to_owned()));
    }
    Ok(())
}

pub(crate) fn free_bytes(dir: &Path) -> Result<u64, DiskError> {
    let found = rustix::fs::statvfs(dir).map_err(|error| DiskError::at(dir, error.into()))?;
    Ok(found.f_bavail * found.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_when_it_is_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let place = Place::in_dir(parent.path(), 0, &Stop::default()).unwrap();
        std::fs::write(place.path().join("x"), "y").unwrap();
        drop(place);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn too_little_room_is_refused_before_anything_is_made() {
        let parent = tempfile::tempdir().unwrap();
        let refused = Place::in_dir(parent.path(), 1 << 60, &Stop::default()).err();
        let words = refused.unwrap().to_string();
        assert!(words.contains("free"), "{words}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
