//! Those who compact agree on whose turn it is.

use bytes::Bytes;
use pontoon_api::etcdserverpb::{PutRequest, PutResponse};
use pontoon_bench::wire::compaction::Turns;
use pontoon_bench::wire::connection::{Connection, Rpc};
use pontoon_bench::wire::fill::ask;

use super::store::Store;

const KEY: &str = "compact_rev_key";

#[test]
fn two_who_compact_take_turns_by_the_version_of_a_key() {
    let store = Store::start();
    let endpoint = store.endpoint.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let connection = Connection::open(endpoint).await.unwrap();
        let mut channel = connection.channel().await;
        let held = || {
            let (value, version) = store.get(KEY).unwrap();
            (String::from_utf8(value.into()).unwrap(), version)
        };
        let key = || Some(Bytes::from_static(KEY.as_bytes()));
        let (mut one, mut other) = (Turns::new(key()), Turns::new(key()));
        // Nobody knows yet what is old.
        assert_eq!(one.next(&mut channel).await, Ok(None));
        assert_eq!(held(), ("0".to_owned(), 1));
        let put = PutRequest {
            key: "x".into(),
            ..Default::default()
        };
        for _ in 0..5 {
            let _: PutResponse = ask(&mut channel, Rpc::Put, &put).await.unwrap();
        }
        // The other one was late, and takes over what it finds.
        assert_eq!(other.next(&mut channel).await, Ok(None));
        assert_eq!(held(), ("0".to_owned(), 1));
        assert_eq!(other.next(&mut channel).await, Ok(Some(6)));
        assert_eq!(held(), ("6".to_owned(), 2));
        // Now the first one is late, and what it knew is not compacted again.
        assert_eq!(one.next(&mut channel).await, Ok(None));
        assert_eq!(held(), ("6".to_owned(), 2));
        assert_eq!(one.next(&mut channel).await, Ok(Some(7)));
        assert_eq!(held(), ("7".to_owned(), 3));
        // Who is alone asks nobody.
        let mut alone = Turns::new(None);
        assert_eq!(alone.next(&mut channel).await, Ok(None));
        assert_eq!(alone.next(&mut channel).await, Ok(Some(8)));
        assert_eq!(held().1, 3);
    });
}
