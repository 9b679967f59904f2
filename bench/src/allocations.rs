//! An allocator that counts, for claims about how often memory is asked for.
//!
//! Kept true: it counts for one thread, and only while that thread wants it;
//! otherwise it costs one look at a thread's own flag.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use mimalloc::MiMalloc;

thread_local! {
    /// Below 0 while nobody counts.
    static COUNT: Cell<i64> = const { Cell::new(-1) };
}

/// [`MiMalloc`], counting what it is asked for.
pub struct Counting;

fn count() {
    // Memory is still asked for while a thread ends and this is gone.
    let _ = COUNT.try_with(|count| {
        if count.get() >= 0 {
            count.set(count.get() + 1);
        }
    });
}

// SAFETY: all of it is `MiMalloc`'s; counting asks for no memory.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the same contract.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(memory, layout, bytes) }
    }
}

/// How often `work` asked for memory on this thread, in a program whose
/// allocator is [`Counting`].
pub fn during<T>(work: impl FnOnce() -> T) -> (u64, T) {
    COUNT.set(0);
    let result = work();
    let count = COUNT.replace(-1);
    (count as u64, result)
}
