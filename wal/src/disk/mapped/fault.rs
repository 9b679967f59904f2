//! Ends the process when reading a mapping fails, and says which file it was.
//!
//! A read of mapped memory has no error to return: if the device fails, or the
//! file was cut, the kernel sends SIGBUS. The process then says which file and
//! page it was, and exits as it does after any failure of its disk.
//!
//! Kept true:
//! - The handler takes no lock and no memory: it reads a table of atomics and
//!   writes one line.
//! - A slot of the table describes a mapping that exists: it is filled after
//!   the memory was mapped and emptied before it is unmapped.
//! - A fault outside of our mappings goes on to whoever handled it before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use libc::{c_int, c_void, sigaction, siginfo_t};
use parking_lot::Mutex;

use crate::blocks::BLOCK_BYTES;
use crate::disk::EXIT_DISK_FAILED;

/// Mappings beyond this many work as well but die namelessly.
const SLOTS: usize = 4096;

static TABLE: [Slot; SLOTS] = [const { Slot::empty() }; SLOTS];

struct Slot {
    /// Address of the mapping; [`FREE`] and [`TAKEN`] are none.
    base: AtomicUsize,
    bytes: AtomicUsize,
    path: AtomicPtr<u8>,
    path_bytes: AtomicUsize,
}

const FREE: usize = 0;
/// Somebody is filling it.
const TAKEN: usize = 1;

impl Slot {
    const fn empty() -> Self {
        Self {
            base: AtomicUsize::new(FREE),
            bytes: AtomicUsize::new(0),
            path: AtomicPtr::new(ptr::null_mut()),
            path_bytes: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> bool {
        self.base
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// How far into this mapping an address is, if it is in it.
    fn offset_of(&self, address: usize) -> Option<usize> {
        let base = self.base.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Acquire);
        let offset = address.checked_sub(base)?;
        let inside = base != FREE && base != TAKEN && offset < bytes;
        // The slot may have changed hands between the two loads.
        let same = self.base.load(Ordering::Relaxed) == base;
        (inside && same).then_some(offset)
    }
}

/// A mapping that the handler knows by its file's name.
pub(super) struct Named {
    slot: Option<&'static Slot>,
    /// What the slot points to.
    _path: Arc<[u8]>,
}

impl Named {
    pub(super) fn new(base: usize, bytes: usize, path: Arc<[u8]>) -> io::Result<Self> {
        install()?;
        let slot = TABLE.iter().find(|slot| slot.take());
        if let Some(slot) = slot {
            slot.path.store(path.as_ptr().cast_mut(), Ordering::Relaxed);
            slot.path_bytes.store(path.len(), Ordering::Relaxed);
            slot.bytes.store(bytes, Ordering::Relaxed);
            slot.base.store(base, Ordering::Release);
        }
        Ok(Self { slot, _path: path })
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.base.store(FREE, Ordering::Release);
        }
    }
}

/// What handled SIGBUS before: the standard library's check for overflown
/// stacks, as a rule.
static PREVIOUS: OnceLock<sigaction> = OnceLock::new();

/// Installs the handler, once.
#[allow(unsafe_code)]
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock();
    if *installed {
        return Ok(());
    }
    let mut previous = MaybeUninit::<sigaction>::uninit();
    // SAFETY: with no new action this only fills `previous`.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above succeeded, so it is filled.
    let previous = unsafe { previous.assume_init() };
    // The handler may run as soon as it is installed, so this comes first.
    let _ = PREVIOUS.set(previous);
    let ours = sigaction {
        sa_sigaction: handle as *const () as usize,
        // The stack may be what is broken, and threads of the standard library have another.
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK,
        ..previous
    };
    // SAFETY: `ours` is `previous`, which is valid, with the address of a
    // function that is what SA_SIGINFO says and that only does what a signal
    // handler may.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

#[allow(unsafe_code)]
extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo, because of SA_SIGINFO.
    let by_kernel = unsafe { (*info).si_code } > 0;
    if by_kernel {
        // SAFETY: as above; a SIGBUS that the kernel raised has an address.
        let address = unsafe { (*info).si_addr() }.addr();
        let found = TABLE.iter().find_map(|slot| {
            let offset = slot.offset_of(address)?;
            Some((slot, offset))
        });
        if let Some((slot, offset)) = found {
            report(slot, offset);
            // SAFETY: may be called from a signal handler.
            unsafe { libc::_exit(EXIT_DISK_FAILED) };
        }
    }
    pass_on(signal, info, context, by_kernel);
}

#[allow(unsafe_code)]
fn report(slot: &Slot, offset: usize) {
    let mut numbers = [[0; 20]; 2];
    let [hex, decimal] = &mut numbers;
    let offset_digits = digits(offset, 16, hex);
    let page_digits = digits(offset / BLOCK_BYTES, 10, decimal);
    let part = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let path = libc::iovec {
        iov_base: slot.path.load(Ordering::Relaxed).cast(),
        iov_len: slot.path_bytes.load(Ordering::Relaxed),
    };
    let line = [
        path,
        part(b": read of page "),
        part(page_digits),
        part(b" at 0x"),
        part(offset_digits),
        part(b": the device failed or the file was cut (SIGBUS)\n"),
    ];
    // SAFETY: every part is memory that lives until the call returns. The
    // path too: the thread that met the fault was reading a slice, which
    // borrows the mapping, which owns the path. Nothing can be done if the
    // write fails.
    unsafe { libc::writev(libc::STDERR_FILENO, line.as_ptr(), line.len() as c_int) };
}

/// The number as ASCII, without anything that allocates.
fn digits(mut number: usize, radix: usize, into: &mut [u8; 20]) -> &[u8] {
    let mut start = into.len();
    loop {
        start -= 1;
        into[start] = b"0123456789abcdef"[number % radix];
        number /= radix;
        if number == 0 {
            return &into[start..];
        }
    }
}

/// Does what would have happened without us.
#[allow(unsafe_code)]
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, by_kernel: bool) {
    let (handler, flags) = match PREVIOUS.get() {
        Some(previous) => (previous.sa_sigaction, previous.sa_flags),
        None => (libc::SIG_DFL, 0),
    };
    match handler {
        libc::SIG_IGN if !by_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both may be called from a signal handler. A fault comes
            // again when we return; a signal that was sent must be sent again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !by_kernel {
                    libc::raise(signal);
                }
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: whoever installed it with SA_SIGINFO gave such a function.
            let handler = unsafe {
                std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(
                    handler,
                )
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: whoever installed it without SA_SIGINFO gave such a function.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(address: usize) -> Option<(String, usize)> {
        TABLE.iter().find_map(|slot| {
            let offset = slot.offset_of(address)?;
            let path = slot.path.load(Ordering::Relaxed).cast_const();
            Some((format!("{path:?}"), offset))
        })
    }

    /// At addresses where nothing is mapped: the table doesn't look.
    #[test]
    fn a_mapping_is_known_while_it_lives_and_the_table_may_be_full() {
        let base = |n: usize| usize::MAX / 2 + n * 0x10_0000;
        let path: Arc<[u8]> = b"/d/file".as_slice().into();
        let mut named: Vec<_> = (0..SLOTS + 2)
            .map(|n| Named::new(base(n), 0x1000, Arc::clone(&path)).unwrap())
            .collect();
        let owner = format!("{:?}", path.as_ptr());
        assert_eq!(known(base(3)), Some((owner.clone(), 0)));
        assert_eq!(known(base(3) + 0xfff), Some((owner.clone(), 0xfff)));
        assert_eq!(known(base(3) + 0x1000), None);
        assert_eq!(known(base(3) - 1), None);
        assert_eq!(known(base(SLOTS + 1)), None);
        drop(named.remove(3));
        assert_eq!(known(base(3)), None);
        let late = Named::new(base(SLOTS + 5), 0x2000, path).unwrap();
        assert_eq!(known(base(SLOTS + 5) + 0x1001), Some((owner, 0x1001)));
        drop((named, late));
        assert!((0..SLOTS + 6).all(|n| known(base(n)).is_none()));
    }

    #[test]
    fn numbers_become_digits() {
        for number in [0, 9, 10, 255, 4096, usize::MAX] {
            let mut into = [0; 20];
            assert_eq!(digits(number, 10, &mut into), number.to_string().as_bytes());
            let hex = format!("{number:x}");
            assert_eq!(digits(number, 16, &mut into), hex.as_bytes());
        }
    }
}
