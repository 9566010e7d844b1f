//! The README's table of RPCs is complete and true: it has every RPC of `proto/`, every call in it compiles, and the
//! tests it names make that call on real etcd.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use actix_etcd::{
    Client, Credentials,
    election::LeaderKey,
    maintenance::Alarm,
    proto::{
        RangeRequest,
        health::{HealthListRequest, health_client::HealthClient},
        kv_client::KvClient,
    },
    roles::Permission,
};

const TTL: Duration = Duration::from_secs(10);

/// An RPC, a call that uses it, and the module with a test of it.
type Row = (&'static str, &'static str, &'static str);

/// What is never run, but compiled: a call that does not exist is an error here. Its text is compared with the README.
macro_rules! calls {
    ($etcd:ident $alarm:ident $leader:ident $provider:ident
     $($rpc:literal, $module:literal: $call:expr;)*) => {
        const CALLS: &[Row] = &[$(($rpc, stringify!($call), $module)),*];

        #[expect(dead_code, reason = "it has to compile, not to run")]
        fn compiles($etcd: &Client, $alarm: Alarm, $leader: &LeaderKey) {
            let $provider = || async { Ok::<_, std::io::Error>(Credentials::token("t")) };
            $(drop($call);)*
        }
    };
}

calls! { etcd alarm leader provider
        "KV.Range", "kv/operations": etcd.get("k");
        "KV.Range", "kv/operations": etcd.get("k").pages(100);
        "KV.RangeStream", "client/raw_grpc": KvClient::new(etcd.grpc()).range_stream(RangeRequest::default());
        "KV.Put", "kv/operations": etcd.put("k", "v");
        "KV.DeleteRange", "kv/operations": etcd.delete("k");
        "KV.Txn", "kv/operations": etcd.txn();
        "KV.Compact", "kv/operations": etcd.compact(1);
        "Watch.Watch", "watch/operations": etcd.watch("k");
        "Lease.LeaseGrant", "lease/operations": etcd.lease(TTL);
        "Lease.LeaseRevoke", "lease/operations": etcd.revoke(1);
        "Lease.LeaseKeepAlive", "lease/operations": etcd.lease(TTL).keep_alive();
        "Lease.LeaseKeepAlive", "lease/operations": etcd.keep_alive_once(1);
        "Lease.LeaseTimeToLive", "lease/operations": etcd.time_to_live(1);
        "Lease.LeaseLeases", "lease/operations": etcd.leases();
        "Cluster.MemberAdd", "cluster/members": etcd.cluster().add(["u"]);
        "Cluster.MemberAdd", "cluster/members": etcd.cluster().add_learner(["u"]);
        "Cluster.MemberRemove", "cluster/members": etcd.cluster().remove(1);
        "Cluster.MemberUpdate", "cluster/members": etcd.cluster().update(1, ["u"]);
        "Cluster.MemberList", "cluster/members": etcd.cluster().list();
        "Cluster.MemberList", "cluster/members": etcd.cluster().list_serializable();
        "Cluster.MemberPromote", "cluster/members": etcd.cluster().promote(1);
        "Maintenance.Alarm", "maintenance/operations": etcd.maintenance().alarms();
        "Maintenance.Alarm", "maintenance/operations": etcd.maintenance().disarm(alarm);
        "Maintenance.Alarm", "maintenance/operations": etcd.maintenance().disarm_all();
        "Maintenance.Status", "maintenance/operations": etcd.maintenance().status();
        "Maintenance.Status", "cluster/members": etcd.versions();
        "Maintenance.Defragment", "maintenance/operations": etcd.maintenance().defragment();
        "Maintenance.Hash", "maintenance/operations": etcd.maintenance().hash();
        "Maintenance.HashKV", "maintenance/operations": etcd.maintenance().hash_kv(0);
        "Maintenance.Snapshot", "maintenance/snapshot": etcd.maintenance().snapshot();
        "Maintenance.Snapshot", "maintenance/snapshot": etcd.maintenance().snapshot_to("p");
        "Maintenance.MoveLeader", "maintenance/operations": etcd.maintenance().move_leader(1);
        "Maintenance.Downgrade", "maintenance/operations": etcd.maintenance().downgrade_validate("3.6");
        "Maintenance.Downgrade", "maintenance/operations": etcd.maintenance().downgrade_enable("3.6");
        "Maintenance.Downgrade", "maintenance/operations": etcd.maintenance().downgrade_cancel();
        "Auth.AuthEnable", "auth/administration": etcd.auth().enable();
        "Auth.AuthDisable", "auth/administration": etcd.auth().disable();
        "Auth.AuthStatus", "auth/administration": etcd.auth().status();
        "Auth.Authenticate", "auth/login": Client::builder(["u"]).auth("n", "p");
        "Auth.Authenticate", "auth/login": Client::builder(["u"]).auth_provider(provider);
        "Auth.UserAdd", "auth/administration": etcd.users().add("n", "p");
        "Auth.UserAdd", "auth/administration": etcd.users().add_without_password("n");
        "Auth.UserGet", "auth/administration": etcd.users().get("n");
        "Auth.UserList", "auth/administration": etcd.users().list();
        "Auth.UserDelete", "auth/administration": etcd.users().delete("n");
        "Auth.UserChangePassword", "auth/administration": etcd.users().change_password("n", "p");
        "Auth.UserGrantRole", "auth/administration": etcd.users().grant_role("n", "r");
        "Auth.UserRevokeRole", "auth/administration": etcd.users().revoke_role("n", "r");
        "Auth.RoleAdd", "auth/administration": etcd.roles().add("r");
        "Auth.RoleGet", "auth/administration": etcd.roles().get("r");
        "Auth.RoleList", "auth/administration": etcd.roles().list();
        "Auth.RoleDelete", "auth/administration": etcd.roles().delete("r");
        "Auth.RoleGrantPermission", "auth/administration": etcd.roles().grant("r", Permission::read("k"));
        "Auth.RoleRevokePermission", "auth/administration": etcd.roles().revoke("r", Permission::read("k"));
        "Lock.Lock", "cluster/server_services": etcd.server_locks().lock("n", 1);
        "Lock.Unlock", "cluster/server_services": etcd.server_locks().unlock("k");
        "Election.Campaign", "cluster/server_services": etcd.server_elections().campaign("n", 1, "v");
        "Election.Proclaim", "cluster/server_services": etcd.server_elections().proclaim(leader, "v");
        "Election.Leader", "cluster/server_services": etcd.server_elections().leader("n");
        "Election.Observe", "cluster/server_services": etcd.server_elections().observe("n");
        "Election.Resign", "cluster/server_services": etcd.server_elections().resign(leader);
        "Health.Check", "cluster/server_services": etcd.health().check();
        "Health.List", "client/raw_grpc": HealthClient::new(etcd.grpc()).list(HealthListRequest::default());
        "Health.Watch", "cluster/server_services": etcd.health().watch("u");
}

/// A call without its arguments.
fn shape(call: &str) -> String {
    let mut depth = 0;
    let mut shape = String::new();
    for letter in call.chars().filter(|letter| !letter.is_whitespace()) {
        depth -= i32::from(letter == ')');
        if depth == 0 {
            shape.push(letter);
        }
        depth += i32::from(letter == '(');
    }
    shape
}

/// The steps of a call without their arguments: `.users`, `.add`. A client may have any name.
fn steps(call: &str) -> Vec<String> {
    let shape = shape(call);
    let shape = shape.strip_prefix("etcd").unwrap_or(&shape);
    let steps = shape.split("()").filter(|step| !step.is_empty());
    steps.map(str::to_owned).collect()
}

/// Whether a source makes this call: its steps one after the other, with whatever arguments. What is made first may have
/// got a name before the rest is called.
fn is_made(source: &str, call: &str) -> bool {
    let letters = source.chars().filter(|letter| !letter.is_whitespace());
    let source: String = letters.collect();
    let steps = steps(call);
    if let [made, rest @ ..] = &steps[..]
        && !rest.is_empty()
    {
        let of_a_client = |letter: char| letter.is_alphanumeric() || letter == '_';
        let named = source.split("let").skip(1).filter_map(|binding| {
            let (name, value) = binding.split_once('=')?;
            let is_made = value.starts_with(made.as_str())
                || value
                    .trim_start_matches(of_a_client)
                    .starts_with(made.as_str());
            let name = name.strip_prefix("mut").unwrap_or(name);
            is_made.then(|| format!("{name}{}", rest[0]))
        });
        let mut named = named.map(|first| [&[first], &rest[1..]].concat());
        if named.any(|steps| makes(&source, &steps)) {
            return true;
        }
    }
    makes(&source, &steps)
}

fn makes(source: &str, steps: &[String]) -> bool {
    source.match_indices(&steps[0]).any(|(start, _)| {
        // A method of a client, not of what a call of it gave.
        let of_a_call = steps[0].starts_with('.') && source[..start].ends_with(')');
        let after = steps.iter().try_fold(&source[start..], |rest, step| {
            past_arguments(rest.strip_prefix(step.as_str())?)
        });
        !of_a_call && after.is_some()
    })
}

/// What follows arguments in parentheses; `None` where there are none.
fn past_arguments(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (place, letter) in text.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 {
            return (place > 0).then(|| &text[place + 1..]);
        }
    }
    None
}

#[test]
fn a_call_is_told_from_its_namesakes() {
    let source = "root.users()\n    .add(name(1), \"p\")\n    .await; let x = etcd.get(\"k\");";
    assert!(is_made(source, r#"etcd.users().add("n", "p")"#));
    assert!(is_made(source, r#"etcd.get("k")"#));
    assert!(!is_made(source, r#"etcd.roles().add("r")"#));
    assert!(!is_made(source, r#"etcd.users().get("n")"#));
    assert!(!is_made(source, r#"etcd.add("n")"#));
    let named = "let mut kv = KvClient::new(etcd.grpc());\n kv.put(one).await;";
    assert!(is_made(named, "KvClient::new(etcd.grpc()).put(x)"));
    assert!(!is_made(named, "KvClient::new(etcd.grpc()).range(x)"));
    assert!(!is_made(named, "HealthClient::new(etcd.grpc()).put(x)"));
    let named = "let users = root.users(); users.add(a, b)";
    assert!(is_made(named, r#"etcd.users().add("n", "p")"#));
    assert!(!is_made(named, r#"etcd.roles().add("r")"#));
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Every RPC of the files under a folder, as `Service.Method`.
fn rpcs(folder: &Path) -> BTreeSet<String> {
    let mut rpcs = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rpcs.extend(self::rpcs(&path));
            continue;
        }
        let mut service = String::new();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => name.clone_into(&mut service),
                (Some("rpc"), Some(name)) => {
                    rpcs.insert(format!("{service}.{name}"));
                }
                _ => {}
            }
        }
    }
    rpcs
}

/// The rows of the README's table: an RPC, and the rest of its row.
fn table() -> BTreeMap<String, String> {
    read("README.md")
        .lines()
        .skip_while(|line| !line.starts_with("| RPC |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let row = line.strip_prefix("| `").expect("a row starts with an RPC");
            let (rpc, rest) = row.split_once('`').expect("its name ends");
            (rpc.to_owned(), rest.to_owned())
        })
        .collect()
}

/// What stands between backticks, but for links.
fn quoted(row: &str) -> Vec<String> {
    let calls = row.split('|').nth(1).expect("a row has calls");
    calls
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_table_of_the_readme_has_every_rpc() {
    let rpcs = rpcs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("proto"));
    assert!(rpcs.len() > 50, "proto/ is not read: {rpcs:?}");
    let listed: BTreeSet<String> = table().into_keys().collect();
    assert_eq!(listed, rpcs);
}

#[test]
fn every_call_in_the_table_of_the_readme_exists() {
    for (rpc, row) in table() {
        let calls = CALLS.iter().filter(|(of, ..)| *of == rpc);
        let calls: Vec<String> = calls.map(|(_, call, _)| shape(call)).collect();
        assert_eq!(quoted(&row), calls, "{rpc}");
    }
}

#[test]
fn every_rpc_has_a_test_on_real_etcd() {
    let table = table();
    for (rpc, call, module) in CALLS {
        let file = format!("tests/suite/{module}.rs");
        assert!(table[*rpc].contains(&file), "{rpc}: {file}");
        let tests = read(&file);
        assert!(is_made(&tests, call), "{file}: {call}");
        let real = ["Cluster::start", "Cluster::builder", "start_with_auth("];
        assert!(real.iter().any(|start| tests.contains(start)), "{file}");
    }
}
