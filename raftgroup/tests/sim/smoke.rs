use std::time::Duration;

use pontoon_engine::{Answer, KeyRange, Put, Range, Request};

use crate::cluster::{Cluster, simulate};

const WITHIN: Duration = Duration::from_secs(10);

fn put(key: &str, value: &str) -> Request {
    Request::Put(Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Put::default()
    })
}

#[test]
fn one_node_one_group() {
    simulate(async {
        let cluster = Cluster::start(1, 1, &[]).await;
        let node = cluster.node(1);
        for n in 0..10 {
            let answer = node.request(put("key", &n.to_string()), WITHIN).await;
            let Ok(Answer::Put(answer)) = answer else {
                panic!("{answer:?}")
            };
            assert_eq!(answer.revision.0, 2 + n);
        }
        let answer = node
            .request(Request::Range(Range::of(KeyRange::all())), WITHIN)
            .await;
        let Ok(Answer::Range(answer)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((answer.count, answer.revision.0), (1, 11));
    });
}

#[test]
fn three_nodes_four_groups() {
    simulate(async {
        let cluster = Cluster::start(2, 3, &["f", "m", "t"]).await;
        let mut last = 0;
        for n in 0..30 {
            let node = cluster.node(1 + n % 3);
            let key = ["a", "g", "n", "z"][n as usize % 4];
            let answer = node.request(put(key, &n.to_string()), WITHIN).await;
            let Ok(Answer::Put(answer)) = answer else {
                panic!("{n}: {answer:?}")
            };
            assert!(answer.revision.0 > last);
            last = answer.revision.0;
        }
        for id in 1..=3 {
            let all = Range::of(KeyRange::all());
            let answer = cluster
                .node(id)
                .request(Request::Range(all.clone()), WITHIN)
                .await;
            let Ok(Answer::Range(answer)) = answer else {
                panic!("{answer:?}")
            };
            assert_eq!((answer.count, answer.revision.0), (4, last));
            let answer = cluster.node(id).read_serializable(&all, WITHIN).await;
            let answer = answer.expect("it is here");
            assert_eq!(answer.count, 4);
        }
    });
}
