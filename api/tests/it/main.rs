//! What this crate says is compared with what etcd's own code says and with
//! what our documents say. `tests/golden` is written anew, in the directory
//! `compat`, by `go run ./golden ../api/tests/golden`.
#![allow(clippy::unwrap_used)]

mod errors;
mod requests;
mod surface;
