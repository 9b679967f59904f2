//! The directory of a cluster to try things out.

use std::fs;
use std::path::PathBuf;

use crate::client::AskError;
use crate::output::say;

/// Removed when it is dropped, unless it was named.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) is_kept: bool,
}

impl Place {
    pub(super) fn take(named: Option<PathBuf>) -> Result<Self, AskError> {
        let is_kept = named.is_some();
        let dir = named.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("pontoon-dev-{}", std::process::id()))
        });
        let made = match is_kept {
            true => fs::create_dir_all(&dir),
            // One that is there is somebody else's.
            false => fs::create_dir(&dir),
        };
        let dir = made.and_then(|()| dir.canonicalize().or(Ok(dir.clone())));
        let dir =
            dir.map_err(|error| AskError::Wrong(format!("no directory for data: {error}")))?;
        Ok(Self { dir, is_kept })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            say(&format!("{} is left: {error}", self.dir.display()));
        }
    }
}
