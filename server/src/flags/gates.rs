//! etcd's feature gates. None of them has a meaning here; one that etcd
//! doesn't know either is an error, as there.

/// One gate.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// As etcd has it.
    pub name: &'static str,
    /// How far etcd is with it.
    pub stage: &'static str,
    /// Whether it is on in etcd unless set.
    pub default: bool,
    /// Why it changes nothing here.
    pub reason: &'static str,
}

const fn gate(
    name: &'static str,
    stage: &'static str,
    default: bool,
    reason: &'static str,
) -> Gate {
    Gate {
        name,
        stage,
        default,
        reason,
    }
}

const CHECKED: &str = "pages are checked when they are read, replicas are compared all the time";
const FULL_TTL: &str = "a new leader gives every lease its full time";

/// All of them.
pub const GATES: &[Gate] = &[
    gate(
        "StopGRPCServiceOnDefrag",
        "ALPHA",
        false,
        "Defragment stops nobody",
    ),
    gate("InitialCorruptCheck", "ALPHA", false, CHECKED),
    gate("CompactHashCheck", "ALPHA", false, CHECKED),
    gate(
        "TxnModeWriteWithSharedBuffer",
        "BETA",
        true,
        "readers and writers share pages anyway",
    ),
    gate("LeaseCheckpoint", "ALPHA", false, FULL_TTL),
    gate("LeaseCheckpointPersist", "ALPHA", false, FULL_TTL),
    gate(
        "SetMemberLocalAddr",
        "ALPHA",
        false,
        "the system chooses the address that links come from",
    ),
    gate(
        "FastLeaseKeepAlive",
        "BETA",
        true,
        "a keepalive never waits for other requests",
    ),
    gate(
        "PriorityRequest",
        "ALPHA",
        false,
        "requests are served in the order in which they come",
    ),
    gate("AllAlpha", "ALPHA", false, "the gates change nothing"),
    gate("AllBeta", "BETA", false, "the gates change nothing"),
];
