//! Members and their state, and what clients see when one of them dies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, ConnectOptions, Error, MemberAddOptions,
    PutOptions, WatchOptions, WatchStream,
};
use tonic::Code;

use crate::suite::{CLUSTERS, both, connect, eventually, next, of_three, put, refused, run, soon};

async fn count(client: &mut Client) -> usize {
    client.member_list().await.unwrap().members().len()
}

/// The client asks any member, and each tells what it knows itself.
async fn await_count(client: &mut Client, wanted: usize) {
    eventually("members know", async || {
        Ok((count(client).await == wanted).then_some(()))
    })
    .await;
}

#[test]
fn members_are_listed() {
    both(async |mut client| {
        let list = client.member_list().await.unwrap();
        let mut places = list
            .members()
            .iter()
            .flat_map(|member| member.client_urls())
            .collect::<Vec<_>>();
        places.sort();
        let all = if list.members().len() == 1 {
            &CLUSTERS.one
        } else {
            &CLUSTERS.three
        };
        let mut all = all
            .iter()
            .map(|place| format!("http://{place}"))
            .collect::<Vec<_>>();
        all.sort();
        assert_eq!(places, all.iter().collect::<Vec<_>>());
    });
}

#[test]
fn a_learner_comes_and_goes() {
    both(async |mut client| {
        let before = count(&mut client).await;
        let learner = || Some(MemberAddOptions::new().with_is_learner());
        // etcd adds none until all have been there for some seconds.
        let added = eventually("members are in touch", async || {
            client
                .member_add(["http://127.0.0.1:1"], learner())
                .await
                .map(Some)
        })
        .await;
        let id = added.member().unwrap().id();
        assert!(added.member().unwrap().is_learner());
        await_count(&mut client, before + 1).await;
        let precondition = Code::FailedPrecondition;
        let there = client
            .member_add(["http://127.0.0.1:1", "http://127.0.0.1:5"], None)
            .await;
        refused(precondition, "etcdserver: Peer URLs already exists", there);
        let another = client.member_add(["http://127.0.0.1:2"], learner()).await;
        refused(
            precondition,
            "etcdserver: too many learner members in cluster",
            another,
        );
        let behind = "etcdserver: can only promote a learner member which is in sync with leader";
        refused(precondition, behind, client.member_promote(id).await);
        client
            .member_update(id, ["http://127.0.0.1:3".to_owned()])
            .await
            .unwrap();
        client.member_remove(id).await.unwrap();
        await_count(&mut client, before).await;
    });
}

#[test]
fn members_that_are_not_there() {
    both(async |mut client| {
        let missing = "etcdserver: member not found";
        refused(Code::NotFound, missing, client.member_remove(12345).await);
        refused(Code::NotFound, missing, client.member_promote(12345).await);
        let update = client
            .member_update(12345, ["http://127.0.0.1:4".to_owned()])
            .await;
        refused(Code::NotFound, missing, update);
        let voter = client.member_list().await.unwrap().members()[0].id();
        let no_learner = "etcdserver: can only promote a learner member";
        refused(
            Code::FailedPrecondition,
            no_learner,
            client.member_promote(voter).await,
        );
    });
}

#[test]
fn status() {
    both(async |mut client| {
        let status = eventually("there is a leader", async || {
            let status = client.status().await?;
            Ok((status.leader() != 0).then_some(status))
        })
        .await;
        let list = client.member_list().await.unwrap();
        assert!(
            list.members()
                .iter()
                .any(|member| member.id() == status.leader())
        );
        assert!(status.raft_term() > 0 && status.db_size() > 0 && !status.is_learner());
        assert_eq!(status.version().split('.').count(), 3);
    });
}

#[test]
fn all_members_have_the_same_hash() {
    of_three(async |mut client| {
        let revision = put(&mut client, &["hash"]).await;
        let mut hashes = Vec::new();
        for place in &CLUSTERS.three {
            let mut member = connect(std::slice::from_ref(place)).await;
            let answer = eventually("it has the revision", async || {
                member.hash_kv(revision).await.map(Some)
            })
            .await;
            assert_eq!(answer.hash_revision(), revision);
            // Only what was compacted at the same revision has the same hash.
            hashes.push((answer.hash(), answer.compact_version()));
            member.hash().await.unwrap();
        }
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    });
}

#[test]
fn defragment() {
    both(async |mut client| {
        client.defragment().await.unwrap();
        put(&mut client, &["defragmented"]).await;
    });
}

#[test]
fn an_alarm() {
    run(async {
        for place in [&CLUSTERS.one[..], &CLUSTERS.three[..1]] {
            let mut client = connect(place).await;
            put(&mut client, &["alarm"]).await;
            let id = client.status().await.unwrap().header().unwrap().member_id();
            let member = || {
                let mut options = AlarmOptions::new();
                options.with_member(id);
                Some(options)
            };
            let raised = client
                .alarm(AlarmAction::Activate, AlarmType::Nospace, member())
                .await
                .unwrap();
            assert_eq!(
                raised
                    .alarms()
                    .iter()
                    .map(|alarm| alarm.member_id())
                    .collect::<Vec<_>>(),
                [id]
            );
            let full = "etcdserver: mvcc: database space exceeded";
            refused(
                Code::ResourceExhausted,
                full,
                client.put("alarm", "x", None).await,
            );
            refused(
                Code::ResourceExhausted,
                full,
                client.lease_grant(10, None).await,
            );
            assert_eq!(client.delete("alarm", None).await.unwrap().deleted(), 1);
            client
                .alarm(AlarmAction::Deactivate, AlarmType::Nospace, member())
                .await
                .unwrap();
            let left = client
                .alarm(AlarmAction::Get, AlarmType::None, None)
                .await
                .unwrap();
            assert!(left.alarms().is_empty());
            put(&mut client, &["alarm"]).await;
        }
    });
}

async fn leader(client: &mut Client) -> u64 {
    eventually("there is a leader", async || {
        let leader = client.status().await?.leader();
        Ok((leader != 0).then_some(leader))
    })
    .await
}

#[test]
fn the_leader_moves() {
    of_three(async |mut client| {
        let old = leader(&mut client).await;
        let list = client.member_list().await.unwrap();
        let place = list
            .members()
            .iter()
            .find(|member| member.id() == old)
            .unwrap()
            .client_urls()[0]
            .clone();
        let target = list
            .members()
            .iter()
            .find(|member| member.id() != old)
            .unwrap()
            .id();
        connect(&[place]).await.move_leader(target).await.unwrap();
        eventually("it leads", async || {
            Ok((leader(&mut client).await == target).then_some(()))
        })
        .await;
        eventually("writes go on", async || {
            client.put("moved", "", None).await.map(Some)
        })
        .await;
    });
}

/// Kills each member once, one after the other, with something done meanwhile.
/// The client is at any of them, so whatever it relies on dies at least once.
async fn kill_each(mut meanwhile: impl AsyncFnMut(usize)) {
    for at in 0..CLUSTERS.three.len() {
        CLUSTERS.order("kill", at);
        meanwhile(at).await;
        CLUSTERS.order("start", at);
    }
}

fn unique(prefix: &str) -> String {
    format!(
        "{prefix}-{}",
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos()
    )
}

/// What the client leaves to its users: a watch that ends is begun again after
/// the last revision that it saw.
struct Resumed {
    client: Client,
    prefix: String,
    stream: Option<WatchStream>,
    last: i64,
    seen: Vec<String>,
}

impl Resumed {
    async fn begin(&self) -> Result<WatchStream, Error> {
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(self.last + 1);
        self.client
            .watch_client()
            .watch(self.prefix.as_str(), Some(options))
            .await
    }

    async fn step(&mut self) -> Result<(), Error> {
        if self.stream.is_none() {
            self.stream = Some(self.begin().await?);
        }
        let stream = self.stream.as_mut().expect("it was just begun");
        let response = match soon(stream.message()).await {
            Ok(Some(response)) => response,
            other => {
                self.stream = None;
                return other.map(|_| ());
            }
        };
        for event in response.events() {
            let kv = event.kv().expect("a key");
            assert!(
                kv.mod_revision() > self.last,
                "{kv:?} came again or too late"
            );
            self.last = kv.mod_revision();
            self.seen.push(kv.key_str().expect("text").to_owned());
        }
        Ok(())
    }

    async fn until(&mut self, count: usize) {
        eventually("every event comes", async || {
            while self.seen.len() < count {
                self.step().await?;
            }
            Ok(Some(()))
        })
        .await;
    }
}

#[test]
fn a_watch_goes_on_when_members_die() {
    of_three(async |mut client| {
        let prefix = unique("resume");
        let last = put(&mut client, &["resume"]).await;
        let mut watch = Resumed {
            client: client.clone(),
            prefix: prefix.clone(),
            stream: None,
            last,
            seen: Vec::new(),
        };
        let mut wanted = Vec::new();
        let mut write = async |wanted: &mut Vec<String>| {
            for _ in 0..10 {
                let key = format!("{prefix}/{:03}", wanted.len());
                eventually("writes go on", async || {
                    client.put(key.as_str(), "", None).await.map(Some)
                })
                .await;
                wanted.push(key);
            }
        };
        write(&mut wanted).await;
        watch.until(wanted.len()).await;
        kill_each(async |_| {
            write(&mut wanted).await;
            watch.until(wanted.len()).await;
        })
        .await;
        // A write whose answer was lost may have been made twice.
        watch.seen.dedup();
        assert_eq!(watch.seen, wanted);
    });
}

#[test]
fn a_keepalive_goes_on_when_members_die() {
    of_three(async |mut client| {
        let lease = client.lease_grant(10, None).await.unwrap().id();
        let key = unique("kept");
        client
            .put(key.as_str(), "", Some(PutOptions::new().with_lease(lease)))
            .await
            .unwrap();
        let mut kept = client.lease_keep_alive(lease).await.ok();
        kill_each(async |_| {
            // One renewal after another, for longer than a third of its life.
            for _ in 0..8 {
                eventually("it is kept alive", async || {
                    let Some((keeper, answers)) = &mut kept else {
                        kept = Some(client.lease_keep_alive(lease).await?);
                        return Ok(None);
                    };
                    let renewed = match keeper.keep_alive().await {
                        Ok(()) => soon(answers.message()).await,
                        Err(error) => Err(error),
                    };
                    match renewed {
                        Ok(Some(answer)) => {
                            assert_eq!(answer.ttl(), 10);
                            Ok(Some(()))
                        }
                        _ => {
                            kept = None;
                            Ok(None)
                        }
                    }
                })
                .await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        })
        .await;
        let found = eventually("it answers", async || {
            client.get(key.as_str(), None).await.map(Some)
        })
        .await;
        assert_eq!(found.count(), 1);
    });
}

#[test]
fn what_was_written_while_a_member_was_dead_is_there_when_it_is_back() {
    of_three(async |client| {
        let keys = ["a", "d", "h", "n", "q", "t", "x"].map(|first| format!("{first}-back"));
        kill_each(async |at| {
            for key in &keys {
                let mut client = client.clone();
                let value = format!("back {at}");
                eventually("writes go on", async || {
                    client
                        .put(key.as_str(), value.as_str(), None)
                        .await
                        .map(Some)
                })
                .await;
            }
        })
        .await;
        for place in &CLUSTERS.three {
            let mut member = connect(std::slice::from_ref(place)).await;
            for key in &keys {
                let found = eventually("it answers", async || {
                    member.get(key.as_str(), None).await.map(Some)
                })
                .await;
                assert_eq!(found.kvs()[0].value(), b"back 2");
            }
        }
    });
}

#[test]
fn a_client_that_needs_a_leader_has_one() {
    run(async {
        for places in [&CLUSTERS.one, &CLUSTERS.three] {
            let options = ConnectOptions::new().with_require_leader(true);
            let mut client = Client::connect(places, Some(options)).await.unwrap();
            let mut watch = client.watch("leader", None).await.unwrap();
            assert!(next(&mut watch).await.created());
            put(&mut client, &["leader"]).await;
            assert_eq!(next(&mut watch).await.events().len(), 1);
        }
    });
}
