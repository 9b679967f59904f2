//! The locks: those of parking_lot, or, with the feature `shuttle`, the same
//! on a scheduler that tries out the orders in which threads can meet.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{Mutex, RwLock};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::MutexGuard;

/// Lets go of both locks, and lets those who wait for them go first. Without
/// that a thread that takes them again at once would starve the others.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn hand_over<A, B>(
    mutex: MutexGuard<'_, A>,
    lock: parking_lot::RwLockWriteGuard<'_, B>,
) {
    parking_lot::RwLockWriteGuard::unlock_fair(lock);
    MutexGuard::unlock_fair(mutex);
}

#[cfg(feature = "shuttle")]
pub(crate) fn hand_over<A, B>(mutex: A, lock: B) {
    drop(lock);
    drop(mutex);
}

#[cfg(feature = "shuttle")]
mod scheduled {
    use shuttle::sync::{self, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    const NOT_POISONED: &str = "a panic ends the test";

    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect(NOT_POISONED)
        }
    }

    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect(NOT_POISONED)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect(NOT_POISONED)
        }
    }
}
