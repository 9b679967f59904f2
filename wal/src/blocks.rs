//! Bytes in whole, aligned blocks: what an O_DIRECT file takes and gives.
//!
//! Kept true: the memory starts on a block boundary and its length is a
//! multiple of [`BLOCK_BYTES`]; nothing here is `unsafe`.

/// Unit of every write to a segment and of its alignment in memory and file.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

const ZERO: Block = Block([0; BLOCK_BYTES]);

/// A growable run of blocks with a write position.
#[derive(Clone, Default)]
pub struct Blocks {
    blocks: Vec<Block>,
    /// Bytes put so far; [`Blocks::seal`] rounds it up to whole blocks.
    used: usize,
}

impl Blocks {
    /// Zeroed blocks that hold at least `bytes`, all of them in use.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        let count = bytes.div_ceil(BLOCK_BYTES);
        Self {
            blocks: vec![ZERO; count],
            used: count * BLOCK_BYTES,
        }
    }

    /// Has `bytes` in use (rounded up to whole blocks), with any contents.
    pub fn resize(&mut self, bytes: usize) {
        self.grow_to(bytes);
        self.used = bytes.next_multiple_of(BLOCK_BYTES);
    }

    /// Forgets the contents and keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Appends `bytes`, growing when needed.
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.grow_to(end);
        let start = self.used;
        self.used = end;
        self.as_mut_slice()[start..end].copy_from_slice(bytes);
    }

    /// Fills the last block with zeros, so that the length is whole blocks.
    pub fn seal(&mut self) {
        let start = self.used;
        let end = start.next_multiple_of(BLOCK_BYTES);
        self.grow_to(end);
        self.used = end;
        self.as_mut_slice()[start..end].fill(0);
    }

    /// Bytes in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was put yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes that fit without growing.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// The bytes in use.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks)[..self.used]
    }

    /// The bytes in use, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.blocks)[..self.used]
    }

    fn grow_to(&mut self, bytes: usize) {
        let count = bytes.div_ceil(BLOCK_BYTES);
        if count > self.blocks.len() {
            self.blocks.resize(count, ZERO);
        }
    }
}

impl AsRef<[u8]> for Blocks {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_aligned_and_zero_padded_when_reused() {
        let mut blocks = Blocks::default();
        blocks.put(&[7; BLOCK_BYTES + 1]);
        blocks.seal();
        assert_eq!(blocks.len(), 2 * BLOCK_BYTES);
        blocks.clear();
        blocks.put(&[8; 3]);
        blocks.seal();
        assert_eq!(blocks.len(), BLOCK_BYTES);
        assert_eq!(blocks.as_slice()[..4], [8, 8, 8, 0]);
        assert!(blocks.as_slice()[3..].iter().all(|&b| b == 0));
        assert_eq!(blocks.as_slice().as_ptr().addr() % BLOCK_BYTES, 0);
    }
}
