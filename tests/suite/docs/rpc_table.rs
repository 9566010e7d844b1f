//! The README's table of RPCs is complete and correct: it lists every RPC of `proto/`, its calls compile, and the test
//! files it names make these calls on real etcd.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use actix_etcd::{
    Client, Credentials,
    auth::roles::Permission,
    maintenance::Alarm,
    proto::{
        RangeRequest,
        health::{HealthListRequest, health_client::HealthClient},
        kv_client::KvClient,
    },
    server_side::election::LeaderKey,
};

const TTL: Duration = Duration::from_secs(10);

/// An RPC, a call that sends it, and the module that tests the call.
type Row = (&'static str, &'static str, &'static str);

/// Defines `CALLS`, and a function that compiles every call but never runs, so that a call that does not exist is a
/// compile error.
macro_rules! calls {
    ($etcd:ident $alarm:ident $leader:ident $provider:ident
     $($rpc:literal, $module:literal: $call:expr;)*) => {
        const CALLS: &[Row] = &[$(($rpc, stringify!($call), $module)),*];

        #[expect(dead_code, reason = "the calls have to compile, not to run")]
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
        "KV.RangeStream", "layers/range_streams": etcd.get("k").stream();
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
        "Auth.Authenticate", "auth/login": Client::builder(["u"]).credentials("n", "p");
        "Auth.Authenticate", "auth/login": Client::builder(["u"]).credentials_provider(provider);
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

/// Returns the call without its arguments.
fn without_arguments(call: &str) -> String {
    let mut depth = 0;
    let mut stripped = String::new();
    for letter in call.chars().filter(|letter| !letter.is_whitespace()) {
        depth -= i32::from(letter == ')');
        if depth == 0 {
            stripped.push(letter);
        }
        depth += i32::from(letter == '(');
    }
    stripped
}

/// Returns the method names of a call, such as `.users` and `.add`, without the name of the client.
fn method_chain(call: &str) -> Vec<String> {
    let call = without_arguments(call);
    let call = call.strip_prefix("etcd").unwrap_or(&call);
    let methods = call.split("()").filter(|method| !method.is_empty());
    methods.map(str::to_owned).collect()
}

/// Returns whether a source file makes this call, with any arguments. The result of the first method may be assigned to a
/// variable before the other methods are called.
fn makes_call(source: &str, call: &str) -> bool {
    let letters = source.chars().filter(|letter| !letter.is_whitespace());
    let source: String = letters.collect();
    let methods = method_chain(call);
    if let [first, rest @ ..] = &methods[..]
        && !rest.is_empty()
    {
        let in_client_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let variable_calls = source.split("let").skip(1).filter_map(|binding| {
            let (name, value) = binding.split_once('=')?;
            let is_first = value.starts_with(first.as_str())
                || value
                    .trim_start_matches(in_client_name)
                    .starts_with(first.as_str());
            let name = name.strip_prefix("mut").unwrap_or(name);
            is_first.then(|| format!("{name}{}", rest[0]))
        });
        let mut chains = variable_calls.map(|call| [&[call], &rest[1..]].concat());
        if chains.any(|methods| contains_chain(&source, &methods)) {
            return true;
        }
    }
    contains_chain(&source, &methods)
}

fn contains_chain(source: &str, methods: &[String]) -> bool {
    source.match_indices(&methods[0]).any(|(start, _)| {
        // The first method must be called on a client, not on the result of another call.
        let on_result = methods[0].starts_with('.') && source[..start].ends_with(')');
        let after = methods.iter().try_fold(&source[start..], |rest, method| {
            skip_arguments(rest.strip_prefix(method.as_str())?)
        });
        !on_result && after.is_some()
    })
}

/// Returns the text after the arguments in parentheses. Returns `None` if the text does not start with arguments.
fn skip_arguments(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (index, letter) in text.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 {
            return (index > 0).then(|| &text[index + 1..]);
        }
    }
    None
}

#[test]
fn calls_are_distinguished_from_similar_calls() {
    let source = "root.users()\n    .add(name(1), \"p\")\n    .await; let x = etcd.get(\"k\");";
    assert!(makes_call(source, r#"etcd.users().add("n", "p")"#));
    assert!(makes_call(source, r#"etcd.get("k")"#));
    assert!(!makes_call(source, r#"etcd.roles().add("r")"#));
    assert!(!makes_call(source, r#"etcd.users().get("n")"#));
    assert!(!makes_call(source, r#"etcd.add("n")"#));
    let named = "let mut kv = KvClient::new(etcd.grpc());\n kv.put(one).await;";
    assert!(makes_call(named, "KvClient::new(etcd.grpc()).put(x)"));
    assert!(!makes_call(named, "KvClient::new(etcd.grpc()).range(x)"));
    assert!(!makes_call(named, "HealthClient::new(etcd.grpc()).put(x)"));
    let named = "let users = root.users(); users.add(a, b)";
    assert!(makes_call(named, r#"etcd.users().add("n", "p")"#));
    assert!(!makes_call(named, r#"etcd.roles().add("r")"#));
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path))
        .unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}

/// Returns every RPC of the files in a folder and its subfolders, as `Service.Method`.
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

/// Returns the rows of the README's table: the RPC, and the rest of its row.
fn readme_table() -> BTreeMap<String, String> {
    read("README.md")
        .lines()
        .skip_while(|line| !line.starts_with("| RPC |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let row = line
                .strip_prefix("| `")
                .expect("the row starts with an RPC");
            let (rpc, rest) = row.split_once('`').expect("the RPC ends with a backtick");
            (rpc.to_owned(), rest.to_owned())
        })
        .collect()
}

/// Returns the calls of a row, which are in backticks.
fn listed_calls(row: &str) -> Vec<String> {
    let calls = row
        .split('|')
        .nth(1)
        .expect("the row has a column of calls");
    calls
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn readme_table_lists_every_rpc() {
    let rpcs = rpcs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("proto"));
    assert!(rpcs.len() > 50, "too few RPCs found in proto/: {rpcs:?}");
    let listed: BTreeSet<String> = readme_table().into_keys().collect();
    assert_eq!(listed, rpcs);
}

#[test]
fn readme_table_calls_exist() {
    for (rpc, row) in readme_table() {
        let calls = CALLS.iter().filter(|(of_rpc, ..)| *of_rpc == rpc);
        let calls: Vec<String> = calls.map(|(_, call, _)| without_arguments(call)).collect();
        assert_eq!(listed_calls(&row), calls, "{rpc}");
    }
}

#[test]
fn every_rpc_is_tested_on_real_etcd() {
    let table = readme_table();
    for (rpc, call, module) in CALLS {
        let file = format!("tests/suite/{module}.rs");
        assert!(
            table[*rpc].contains(&file),
            "the row of {rpc} does not name {file}"
        );
        let tests = read(&file);
        assert!(makes_call(&tests, call), "{file} does not call {call}");
        let starts_etcd = ["Cluster::start", "Cluster::builder", "start_with_auth("];
        assert!(
            starts_etcd.iter().any(|start| tests.contains(start)),
            "{file} does not start etcd"
        );
    }
}
