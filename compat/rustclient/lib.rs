//! Only tests are here: `tests/it`.
