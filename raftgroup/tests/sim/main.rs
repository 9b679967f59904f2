//! Whole clusters in one process, on simulated disks, network and time.

mod cluster;
mod smoke;
