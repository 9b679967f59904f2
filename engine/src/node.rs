//! A node of the tree, inside its page (or, for very long keys, its pages).
//!
//! Kept true:
//! - Slots lie in key order; each holds the first bytes of its key, so that
//!   most of a search never leaves them, and the offset of its cell.
//! - The bytes that all keys have in common stand once, in the prefix.
//! - In a branch the key of a cell is a lower bound of all keys below it; the
//!   first cell's key means nothing, it stands for everything smaller.
//! - `check_shape` accepted the bytes before anything else looked at them, so
//!   that no offset leads outside.
//!
//! ```text
//! | page header | prefix | slots →      free      ← cells |
//! ```

use std::cmp::Ordering;

use crate::format::{NODE_HEADER_BYTES as HEADER, NodeHeader, PAGE_BYTES, PageKind, RUN_REF_BYTES};

const SLOT_BYTES: usize = 6;
/// Child and count of a branch's cell.
const CHILD_BYTES: usize = 12;
/// Most bytes of a prefix.
const PREFIX_BYTES_MAX: usize = 1024;

/// Where a large value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunRef {
    /// First page.
    pub(crate) page: u64,
    /// Length of the value.
    pub(crate) bytes: u32,
}

impl RunRef {
    fn encode(self) -> [u8; RUN_REF_BYTES] {
        let mut out = [0; RUN_REF_BYTES];
        out[..8].copy_from_slice(&self.page.to_le_bytes());
        out[8..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        Self {
            page: u64::from_le_bytes(array(bytes, 0)),
            bytes: u32::from_le_bytes(array(bytes, 8)),
        }
    }
}

/// A subtree, as its parent knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Child {
    /// Page of its top node.
    pub(crate) page: u64,
    /// Entries in its leaves.
    pub(crate) count: u64,
}

impl Child {
    fn encode(self) -> [u8; CHILD_BYTES] {
        let mut out = [0; CHILD_BYTES];
        out[..6].copy_from_slice(&self.page.to_le_bytes()[..6]);
        out[6..].copy_from_slice(&self.count.to_le_bytes()[..6]);
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let page = u64::from_le_bytes(array(bytes, 0));
        let count = u64::from_le_bytes(array(bytes, 4));
        Self {
            page: page & (u64::MAX >> 16),
            count: count >> 16,
        }
    }
}

/// What a leaf holds for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// The bytes in the leaf.
    pub(crate) payload: &'a [u8],
    /// The bytes elsewhere, if there are any.
    pub(crate) run: Option<RunRef>,
}

/// A node to read.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    count: usize,
    slots: usize,
    shift: u8,
    level: u8,
}

impl<'a> Node<'a> {
    /// The node in `bytes`, whose shape was checked.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            count: usize::from(u16::from_le_bytes(array(bytes, NodeHeader::COUNT))),
            slots: HEADER + usize::from(u16::from_le_bytes(array(bytes, NodeHeader::PREFIX))),
            shift: bytes[NodeHeader::SHIFT],
            level: bytes[NodeHeader::LEVEL],
            bytes,
        }
    }

    /// All bytes of its pages.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// 0 for leaves.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    pub(crate) fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEADER..self.slots]
    }

    fn head(&self, i: usize) -> u32 {
        u32::from_le_bytes(array(self.bytes, self.slots + i * SLOT_BYTES))
    }

    fn cell(&self, i: usize) -> &'a [u8] {
        let at = self.slots + i * SLOT_BYTES + 4;
        let offset = usize::from(u16::from_le_bytes(array(self.bytes, at))) << self.shift;
        &self.bytes[offset..]
    }

    /// Key `i` without the prefix.
    pub(crate) fn suffix(&self, i: usize) -> &'a [u8] {
        self.split(i).0
    }

    /// Suffix of key `i`, and the cell from its body on.
    fn split(&self, i: usize) -> (&'a [u8], &'a [u8]) {
        let (bytes, rest) = varint(self.cell(i));
        rest.split_at(bytes)
    }

    /// Appends key `i`.
    pub(crate) fn key_into(&self, i: usize, key: &mut Vec<u8>) {
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(i));
    }

    pub(crate) fn key(&self, i: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.key_into(i, &mut key);
        key
    }

    /// What leaf cell `i` holds.
    pub(crate) fn item(&self, i: usize) -> Item<'a> {
        let (length, rest) = varint(self.split(i).1);
        let (payload, rest) = rest.split_at(length >> 1);
        Item {
            payload,
            run: (length & 1 == 1).then(|| RunRef::decode(rest)),
        }
    }

    /// The subtree of branch cell `i`.
    pub(crate) fn child(&self, i: usize) -> Child {
        Child::decode(self.split(i).1)
    }

    /// Everything of cell `i` after its key.
    fn body(&self, i: usize) -> &'a [u8] {
        let rest = self.split(i).1;
        if self.level > 0 {
            return &rest[..CHILD_BYTES];
        }
        let (length, after) = varint(rest);
        let bytes = (rest.len() - after.len()) + (length >> 1) + (length & 1) * RUN_REF_BYTES;
        &rest[..bytes]
    }

    /// Offset of cell `i`'s body.
    fn body_at(&self, i: usize) -> usize {
        self.bytes.len() - self.split(i).1.len()
    }

    /// Entries in or below this node.
    pub(crate) fn total(&self) -> u64 {
        if self.is_leaf() {
            return self.count as u64;
        }
        (0..self.count).map(|i| self.child(i).count).sum()
    }

    /// Where `key` is in this leaf, or where it would be.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_from(0, key)
    }

    /// The child of this branch under which `key` belongs.
    pub(crate) fn route(&self, key: &[u8]) -> usize {
        match self.search_from(1, key) {
            Ok(i) => i,
            Err(i) => i.max(1) - 1,
        }
    }

    fn search_from(&self, first: usize, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(suffix) = key.strip_prefix(prefix) else {
            return Err(if key < prefix {
                first
            } else {
                self.count.max(first)
            });
        };
        let head = head_of(suffix);
        let (mut low, mut high) = (first, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            let order = match self.head(middle).cmp(&head) {
                Ordering::Equal => self.suffix(middle).cmp(suffix),
                order => order,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    fn cells_start(&self) -> usize {
        u32::from_le_bytes(array(self.bytes, NodeHeader::CELLS)) as usize
    }

    fn wasted(&self) -> usize {
        u32::from_le_bytes(array(self.bytes, NodeHeader::WASTED)) as usize
    }

    /// Bytes that are neither free nor wasted.
    pub(crate) fn used(&self) -> usize {
        self.bytes.len() - self.free()
    }

    fn free(&self) -> usize {
        self.gap() + self.wasted()
    }

    /// Whether to lay it out anew with a cell that has no room would make none.
    pub(crate) fn is_packed_for(&self, cell: &Cell<'_>) -> bool {
        self.wasted() == 0 && cell.key[0].starts_with(self.prefix())
    }

    fn gap(&self) -> usize {
        self.cells_start() - self.slots - self.count * SLOT_BYTES
    }

    /// All cells, with whole keys.
    pub(crate) fn cells(&self) -> Vec<Cell<'a>> {
        let prefix = self.prefix();
        // Most who ask add one.
        let mut cells = Vec::with_capacity(self.count + 1);
        cells.extend((0..self.count).map(|i| Cell {
            key: [prefix, self.suffix(i)],
            body: [self.body(i), &[], &[]],
        }));
        cells
    }
}

/// A cell on its way into a node: its parts, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) key: [&'a [u8]; 2],
    body: [&'a [u8]; 3],
}

impl Cell<'_> {
    pub(crate) fn key(&self) -> Vec<u8> {
        self.key.concat()
    }

    fn key_bytes(&self) -> usize {
        self.key[0].len() + self.key[1].len()
    }

    /// Bytes in a node with a prefix of `prefix` bytes, slot included.
    fn bytes(&self, prefix: usize) -> usize {
        let suffix = self.key_bytes() - prefix;
        let body: usize = self.body.iter().map(|part| part.len()).sum();
        SLOT_BYTES + varint_bytes(suffix) + suffix + body
    }
}

/// The body of a cell that doesn't exist yet.
pub(crate) struct Body<'a> {
    head: [u8; CHILD_BYTES],
    head_bytes: usize,
    payload: &'a [u8],
    tail: [u8; RUN_REF_BYTES],
    tail_bytes: usize,
}

impl<'a> Body<'a> {
    pub(crate) fn of_item(item: Item<'a>) -> Self {
        let mut head = [0; CHILD_BYTES];
        let length = item.payload.len() << 1 | usize::from(item.run.is_some());
        let head_bytes = put_varint(&mut head, length);
        Self {
            head,
            head_bytes,
            payload: item.payload,
            tail: item.run.map_or([0; RUN_REF_BYTES], RunRef::encode),
            tail_bytes: if item.run.is_some() { RUN_REF_BYTES } else { 0 },
        }
    }

    pub(crate) fn of_child(child: Child) -> Self {
        Self {
            head: child.encode(),
            head_bytes: CHILD_BYTES,
            payload: &[],
            tail: [0; RUN_REF_BYTES],
            tail_bytes: 0,
        }
    }

    pub(crate) fn cell<'b>(&'b self, key: &'b [u8]) -> Cell<'b> {
        Cell {
            key: [key, &[]],
            body: [
                &self.head[..self.head_bytes],
                self.payload,
                &self.tail[..self.tail_bytes],
            ],
        }
    }
}

/// Puts `cell` at slot `i` of a node, in place of what is there if `replace`.
/// `false`, and nothing changed, if it doesn't fit in this node.
pub(crate) fn put(bytes: &mut [u8], i: usize, replace: bool, cell: &Cell<'_>) -> bool {
    let node = Node::new(bytes);
    let prefix = node.prefix();
    let key = cell.key[0];
    debug_assert!(cell.key[1].is_empty(), "keys of new cells are whole");
    if !key.starts_with(prefix) {
        return false;
    }
    let suffix = key.len() - prefix.len();
    let needed = cell.bytes(prefix.len()) - SLOT_BYTES;
    if replace {
        let old_body = node.body(i);
        let body: usize = cell.body.iter().map(|part| part.len()).sum();
        if old_body.len() == body {
            let at = node.body_at(i);
            write_parts(&mut bytes[at..at + body], &cell.body);
            return true;
        }
        let old = node.suffix(i).len() + varint_bytes(suffix) + old_body.len();
        let old = align(old, node.shift);
        if node.free() + old < align(needed, node.shift) {
            return false;
        }
        remove(bytes, i);
    } else if node.free() < align(needed, node.shift) + SLOT_BYTES {
        return false;
    }
    insert(bytes, i, cell, needed);
    true
}

fn insert(bytes: &mut [u8], i: usize, cell: &Cell<'_>, needed: usize) {
    let mut node = Node::new(bytes);
    let space = align(needed, node.shift);
    if node.gap() < space + SLOT_BYTES {
        tidy(bytes);
        node = Node::new(bytes);
    }
    let (slots, count, shift) = (node.slots, node.count, node.shift);
    let prefix = slots - HEADER;
    let start = node.cells_start() - space;
    let suffix = &cell.key[0][prefix..];
    let slot = slots + i * SLOT_BYTES;
    bytes.copy_within(slot..slots + count * SLOT_BYTES, slot + SLOT_BYTES);
    write_slot(bytes, slot, suffix, start, shift);
    write_cell(&mut bytes[start..], &[suffix, &[]], &cell.body);
    set_u16(bytes, NodeHeader::COUNT, count + 1);
    set_u32(bytes, NodeHeader::CELLS, start);
}

/// Takes cell `i` out.
pub(crate) fn remove(bytes: &mut [u8], i: usize) {
    let node = Node::new(bytes);
    let (slots, count) = (node.slots, node.count);
    let suffix = node.suffix(i).len();
    let cell = align(
        varint_bytes(suffix) + suffix + node.body(i).len(),
        node.shift,
    );
    let wasted = node.wasted() + cell;
    let slot = slots + i * SLOT_BYTES;
    bytes.copy_within(slot + SLOT_BYTES..slots + count * SLOT_BYTES, slot);
    set_u16(bytes, NodeHeader::COUNT, count - 1);
    set_u32(bytes, NodeHeader::WASTED, wasted);
}

/// Changes child and count of branch cell `i`.
pub(crate) fn set_child(bytes: &mut [u8], i: usize, child: Child) {
    let at = Node::new(bytes).body_at(i);
    bytes[at..at + CHILD_BYTES].copy_from_slice(&child.encode());
}

/// Lays the cells out again without holes.
fn tidy(bytes: &mut [u8]) {
    let image = {
        let node = Node::new(bytes);
        build_with(node.level, node.prefix(), &node.cells(), bytes.len())
    };
    // The fields before the count are the page's, not the node's.
    bytes[NodeHeader::COUNT..].copy_from_slice(&image[NodeHeader::COUNT..]);
}

/// A node of these cells, in as few pages as will do.
pub(crate) fn build(level: u8, cells: &[Cell<'_>]) -> Vec<u8> {
    let prefix = common_prefix(level, cells);
    let bytes = built_bytes(prefix.len(), cells);
    let mut length = bytes.next_multiple_of(PAGE_BYTES);
    // Cells of long nodes are aligned, which takes a little more.
    if shift_of(length) > 0 {
        length = (bytes + (cells.len() << shift_of(length))).next_multiple_of(PAGE_BYTES);
    }
    build_with(level, &prefix, cells, length)
}

/// Bytes that these cells take as one node.
pub(crate) fn image_bytes(level: u8, cells: &[Cell<'_>]) -> usize {
    built_bytes(common_prefix(level, cells).len(), cells)
}

fn built_bytes(prefix: usize, cells: &[Cell<'_>]) -> usize {
    let cells: usize = cells
        .iter()
        .map(|cell| cell.bytes(cell.key_bytes().min(prefix)))
        .sum();
    HEADER + prefix + cells
}

/// Bytes that a cell takes in a node with a prefix of `prefix` bytes.
pub(crate) fn cell_bytes(cell: &Cell<'_>, prefix: usize) -> usize {
    cell.bytes(prefix.min(cell.key_bytes()))
}

/// Bytes of a page that cells and prefix may take.
pub(crate) const ROOM: usize = PAGE_BYTES - HEADER;

fn build_with(level: u8, prefix: &[u8], cells: &[Cell<'_>], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let shift = shift_of(length);
    bytes[NodeHeader::KIND] = if level == 0 {
        PageKind::Leaf
    } else {
        PageKind::Branch
    } as u8;
    bytes[NodeHeader::LEVEL] = level;
    bytes[NodeHeader::SHIFT] = shift;
    set_u32(&mut bytes, NodeHeader::PAGES, length / PAGE_BYTES);
    set_u16(&mut bytes, NodeHeader::COUNT, cells.len());
    set_u16(&mut bytes, NodeHeader::PREFIX, prefix.len());
    bytes[HEADER..HEADER + prefix.len()].copy_from_slice(prefix);
    let mut slot = HEADER + prefix.len();
    let mut start = length;
    for cell in cells {
        // Only the first cell of a branch may lack the prefix, and its key means nothing.
        let skip = prefix.len().min(cell.key_bytes());
        let suffix = skip_bytes(cell.key, skip);
        start -= align(cell.bytes(skip) - SLOT_BYTES, shift);
        write_cell(&mut bytes[start..], &suffix, &cell.body);
        let head = head_of_parts(suffix);
        bytes[slot..slot + 4].copy_from_slice(&head.to_le_bytes());
        set_u16(&mut bytes, slot + 4, start >> shift);
        slot += SLOT_BYTES;
    }
    assert!(slot <= start, "a node's cells fit in its pages");
    set_u32(&mut bytes, NodeHeader::CELLS, start);
    bytes
}

/// What all keys begin with. A branch's first key doesn't count.
fn common_prefix(level: u8, cells: &[Cell<'_>]) -> Vec<u8> {
    let cells = if level > 0 {
        &cells[1.min(cells.len())..]
    } else {
        cells
    };
    let (Some(first), Some(last)) = (cells.first(), cells.last()) else {
        return Vec::new();
    };
    let mut first = first.key();
    let common = common_bytes(&first, &last.key());
    first.truncate(common.min(PREFIX_BYTES_MAX));
    first
}

/// The shortest key that is above `left` and not above `right`.
pub(crate) fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    right[..common_bytes(left, right) + 1].to_vec()
}

fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Checks everything that reading the node relies on.
pub(crate) fn check_shape(bytes: &[u8]) -> Result<(), &'static str> {
    let node = Node::new(bytes);
    let leaf = bytes[NodeHeader::KIND] == PageKind::Leaf as u8;
    if leaf != node.is_leaf() || !leaf && bytes[NodeHeader::KIND] != PageKind::Branch as u8 {
        return Err("kind and level of the node disagree");
    }
    if node.shift != shift_of(bytes.len()) {
        return Err("the node's offsets have the wrong unit");
    }
    let slots_end = node.slots + node.count * SLOT_BYTES;
    let start = node.cells_start();
    if slots_end > start || start > bytes.len() || node.count == 0 {
        return Err("the node's slots and cells don't fit");
    }
    if node.wasted() > bytes.len() - start {
        return Err("the node has more holes than cells");
    }
    for i in 0..node.count {
        let at = node.slots + i * SLOT_BYTES + 4;
        let offset = usize::from(u16::from_le_bytes(array(bytes, at))) << node.shift;
        if offset < start || offset >= bytes.len() {
            return Err("a cell lies outside its node");
        }
        let rest = checked_varint(&bytes[offset..])
            .and_then(|(key, rest)| rest.get(key..))
            .ok_or("a key lies outside its node")?;
        let body = if leaf {
            checked_varint(rest).and_then(|(length, rest)| {
                rest.get(length >> 1..)?.get((length & 1) * RUN_REF_BYTES..)
            })
        } else {
            rest.get(CHILD_BYTES..)
        };
        body.ok_or("a cell's content lies outside its node")?;
    }
    Ok(())
}

/// Offsets of nodes beyond 64 KiB are counted in units that fit 16 bits.
fn shift_of(bytes: usize) -> u8 {
    let mut shift = 0;
    while bytes >> shift > 1 << 16 {
        shift += 1;
    }
    // The very end is an offset too, of a cell of no bytes; there is none.
    shift
}

fn align(bytes: usize, shift: u8) -> usize {
    bytes.next_multiple_of(1 << shift)
}

fn head_of(suffix: &[u8]) -> u32 {
    match suffix.first_chunk() {
        Some(head) => u32::from_be_bytes(*head),
        None => {
            let mut head = [0; 4];
            head[..suffix.len()].copy_from_slice(suffix);
            u32::from_be_bytes(head)
        }
    }
}

fn head_of_parts(suffix: [&[u8]; 2]) -> u32 {
    if suffix[0].len() >= 4 || suffix[1].is_empty() {
        return head_of(suffix[0]);
    }
    let mut head = [0; 4];
    for (to, from) in head.iter_mut().zip(suffix[0].iter().chain(suffix[1])) {
        *to = *from;
    }
    u32::from_be_bytes(head)
}

fn skip_bytes(key: [&[u8]; 2], bytes: usize) -> [&[u8]; 2] {
    let [first, second] = key;
    if bytes <= first.len() {
        [&first[bytes..], second]
    } else {
        [&second[bytes - first.len()..], &[]]
    }
}

fn write_slot(bytes: &mut [u8], slot: usize, suffix: &[u8], offset: usize, shift: u8) {
    bytes[slot..slot + 4].copy_from_slice(&head_of(suffix).to_le_bytes());
    set_u16(bytes, slot + 4, offset >> shift);
}

fn write_cell(into: &mut [u8], suffix: &[&[u8]; 2], body: &[&[u8]; 3]) {
    let at = put_varint(into, suffix[0].len() + suffix[1].len());
    let at = at + write_parts(&mut into[at..], suffix);
    write_parts(&mut into[at..], body);
}

fn write_parts(into: &mut [u8], parts: &[&[u8]]) -> usize {
    let mut at = 0;
    for part in parts {
        into[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    at
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the shape was checked")
}

fn set_u16(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("counts and offsets of a node fit 16 bits");
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn set_u32(bytes: &mut [u8], at: usize, value: usize) {
    let value = u32::try_from(value).expect("a node is smaller than 4 GiB");
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Bytes that [`put_varint`] takes.
pub(crate) fn varint_bytes(value: usize) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    }
}

/// Writes seven bits a byte, lowest first; returns how many bytes.
pub(crate) fn put_varint(into: &mut [u8], value: usize) -> usize {
    let mut rest = value;
    let mut at = 0;
    while rest >= 0x80 {
        into[at] = (rest & 0x7f) as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    into[at] = rest as u8;
    at + 1
}

fn varint(bytes: &[u8]) -> (usize, &[u8]) {
    // Most lengths are below 128.
    if bytes[0] < 0x80 {
        return (usize::from(bytes[0]), &bytes[1..]);
    }
    checked_varint(bytes).expect("the shape was checked")
}

fn checked_varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}
