//! The first members from DNS, as etcd finds them: SRV records of a domain.
//!
//! Kept true: every member that asks gets the same members with the same
//! URLs, because ids are made of them; names are only for this member to find
//! itself.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use hickory_resolver::proto::rr::RData;
use hickory_resolver::{Resolver, TokioResolver};

use crate::config::{Config, FirstMembers};
use crate::url::Url;

/// Asks the system's name servers.
pub(crate) async fn first_members(config: &Config, own: &[Url]) -> Result<FirstMembers, String> {
    let resolver = Resolver::builder_tokio().and_then(|builder| builder.build());
    let resolver = resolver.map_err(|error| format!("no name servers: {error}"))?;
    ask(&resolver, config, own).await
}

async fn ask(
    resolver: &TokioResolver,
    config: &Config,
    own: &[Url],
) -> Result<FirstMembers, String> {
    let domain = config.discovery_srv.as_deref().unwrap_or_default();
    let domain = domain.trim_end_matches('.');
    let suffix = match config.discovery_srv_name.as_str() {
        "" => String::new(),
        name => format!("-{name}"),
    };
    let mut own_addresses = BTreeSet::new();
    for url in own {
        own_addresses.extend(addresses(&url.authority).await);
    }
    let mut members = FirstMembers::new();
    let mut failures = Vec::new();
    for (service, scheme) in [("etcd-server-ssl", "https"), ("etcd-server", "http")] {
        let name = format!("_{service}{suffix}._tcp.{domain}.");
        let found = match resolver.srv_lookup(name.as_str()).await {
            Ok(found) => found,
            Err(error) => {
                failures.push(format!("{name} {error}"));
                continue;
            }
        };
        for record in found.answers() {
            let RData::SRV(record) = &record.data else {
                continue;
            };
            let host = record.target.to_utf8();
            let authority = format!("{}:{}", host.trim_end_matches('.'), record.port);
            let is_own = !own_addresses.is_disjoint(&addresses(&authority).await);
            let name = match is_own {
                true => config.name.clone(),
                false => members.len().to_string(),
            };
            let url = Url::parse(&format!("{scheme}://{authority}"))?;
            match members.iter_mut().find(|(known, _)| *known == name) {
                Some((_, urls)) => urls.push(url),
                None => members.push((name, vec![url])),
            }
        }
    }
    if members.is_empty() {
        return Err(format!("no members are found: {}", failures.join("; ")));
    }
    if !members.iter().any(|(name, _)| *name == config.name) {
        let found: Vec<_> = members.iter().flat_map(|(_, urls)| urls).collect();
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        return Err(format!(
            "none of the members found ({}) is at this one's --initial-advertise-peer-urls {}",
            found.join(","),
            config.initial_advertise_peer_urls
        ));
    }
    for (_, urls) in &mut members {
        urls.sort();
    }
    Ok(members)
}

/// Nowhere, if it has no address.
async fn addresses(authority: &str) -> BTreeSet<SocketAddr> {
    match tokio::net::lookup_host(authority).await {
        Ok(addresses) => addresses.collect(),
        Err(_) => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_resolver::config::{NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use tokio::net::UdpSocket;

    use super::*;

    /// A name server that has these SRV records and no others.
    async fn name_server(records: Vec<(&'static str, u16, &'static str)>) -> TokioResolver {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = socket.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                let (bytes, from) = socket.recv_from(&mut query).await.unwrap();
                let answer = answer(&query[..bytes], &records);
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        let mut server = NameServerConfig::udp(Ipv4Addr::LOCALHOST.into());
        server.connections[0].port = port;
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        Resolver::builder_with_config(config, TokioRuntimeProvider::default())
            .build()
            .unwrap()
    }

    fn answer(query: &[u8], records: &[(&str, u16, &str)]) -> Vec<u8> {
        let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
        let matching: Vec<_> = records
            .iter()
            .filter(|(name, ..)| labels(name) == query[12..end].to_ascii_lowercase())
            .collect();
        let mut answer = query[..2].to_vec();
        // An answer, recursion is there; without a record: no such name.
        answer.extend([0x85, if matching.is_empty() { 0x83 } else { 0x80 }]);
        answer.extend([0, 1, 0, matching.len() as u8, 0, 0, 0, 0]);
        answer.extend(&query[12..end + 4]);
        for (_, port, target) in matching {
            // The name is the question's; SRV, IN, a minute.
            answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60]);
            let target = labels(target);
            answer.extend((6 + target.len() as u16).to_be_bytes());
            answer.extend([0, 0, 0, 0]);
            answer.extend(port.to_be_bytes());
            answer.extend(target);
        }
        answer
    }

    fn labels(name: &str) -> Vec<u8> {
        let parts = name.trim_end_matches('.').split('.');
        let mut bytes: Vec<u8> = parts
            .flat_map(|part| std::iter::once(part.len() as u8).chain(part.bytes()))
            .collect();
        bytes.push(0);
        bytes
    }

    fn config() -> Config {
        Config {
            name: "me".to_owned(),
            discovery_srv: Some("example.test".to_owned()),
            initial_advertise_peer_urls: "http://127.0.0.1:2380".to_owned(),
            ..Config::default()
        }
    }

    async fn found(
        records: Vec<(&'static str, u16, &'static str)>,
        config: &Config,
    ) -> Result<Vec<String>, String> {
        let resolver = name_server(records).await;
        let own = Url::parse_list(&config.initial_advertise_peer_urls).unwrap();
        let mut members: Vec<_> = ask(&resolver, config, &own)
            .await?
            .into_iter()
            .map(|(name, urls)| format!("{name}={}", urls[0]))
            .collect();
        members.sort();
        Ok(members)
    }

    #[tokio::test]
    async fn members_are_found_by_their_records() {
        let records = vec![
            ("_etcd-server._tcp.example.test", 2380, "localhost."),
            ("_etcd-server._tcp.example.test", 2480, "localhost."),
            ("_etcd-server-blue._tcp.example.test", 2380, "localhost."),
        ];
        let members = found(records.clone(), &config()).await.unwrap();
        assert_eq!(members.len(), 2);
        assert!(members.contains(&"me=http://localhost:2380".to_owned()));
        assert!(
            members
                .iter()
                .any(|member| member.ends_with("localhost:2480"))
        );
        let mut blue = config();
        blue.discovery_srv_name = "blue".to_owned();
        let members = found(records.clone(), &blue).await.unwrap();
        assert_eq!(members, ["me=http://localhost:2380"]);

        let mut elsewhere = config();
        elsewhere.initial_advertise_peer_urls = "http://127.0.0.1:1".to_owned();
        let refused = found(records, &elsewhere).await.unwrap_err();
        assert!(refused.contains("none of the members found"), "{refused}");
        let refused = found(Vec::new(), &config()).await.unwrap_err();
        assert!(
            refused.contains("_etcd-server._tcp.example.test"),
            "{refused}"
        );
    }
}
