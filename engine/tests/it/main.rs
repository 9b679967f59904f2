//! Tests of the engine through its interface.
#![allow(clippy::unwrap_used)]
#![cfg_attr(feature = "shuttle", allow(dead_code, unused_imports))]

#[cfg(not(feature = "shuttle"))]
mod agree;
#[cfg(not(feature = "shuttle"))]
mod background;
#[cfg(not(feature = "shuttle"))]
mod crash;
#[cfg(not(feature = "shuttle"))]
mod damage;
#[cfg(not(feature = "shuttle"))]
mod docs;
#[cfg(not(feature = "shuttle"))]
mod golden;
// Laid out by hand, to be read in one piece.
#[cfg(not(feature = "shuttle"))]
#[rustfmt::skip]
mod model;
#[cfg(not(feature = "shuttle"))]
mod ops;
#[cfg(not(feature = "shuttle"))]
mod script;
#[cfg(not(feature = "shuttle"))]
mod snapshots;
#[cfg(not(feature = "shuttle"))]
mod splits;
#[cfg(not(feature = "shuttle"))]
mod staged;
mod together;
