//! The code in `src/proto/generated` equals the output of the generator for `proto/`.
//!
//! This test links the library. After a change to `proto/`, regenerate before you use the new items, because otherwise
//! the library does not compile.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const REGENERATE: &str = "ACTIX_ETCD_REGENERATE";

/// Messages with a password, a hash or a token. `src/proto/redacted.rs` implements `Debug` for them.
const SECRETS: [&str; 5] = [
    ".authpb.User",
    ".etcdserverpb.AuthUserAddRequest",
    ".etcdserverpb.AuthUserChangePasswordRequest",
    ".etcdserverpb.AuthenticateRequest",
    ".etcdserverpb.AuthenticateResponse",
];

#[test]
fn generated_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked_in = root.join("src/proto/generated");
    let fresh = generate(&root.join("proto"));

    if wants_rewrite() {
        rewrite(&checked_in, &fresh);
        return;
    }

    let stale = differences(&read_folder(&checked_in), &fresh);
    assert!(
        stale.is_empty(),
        "src/proto/generated differs from the output of the generator ({}); regenerate it with \
         `{REGENERATE}=1 cargo test --test codegen` and commit the result",
        stale.join(", ")
    );
}

#[test]
fn differences_name_changed_missing_and_surplus_files() {
    let files = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|&(name, text)| (name.to_owned(), text.to_owned()))
            .collect()
    };
    let checked_in = files(&[("same.rs", "a"), ("changed.rs", "b"), ("surplus.rs", "c")]);
    let fresh = files(&[("same.rs", "a"), ("changed.rs", "B"), ("missing.rs", "d")]);

    assert_eq!(
        differences(&checked_in, &fresh),
        [
            "changed.rs differs in line 1",
            "missing.rs is missing",
            "surplus.rs is no longer generated"
        ]
    );
}

/// Returns whether to rewrite the generated code. Never in CI, which must check the committed code.
fn wants_rewrite() -> bool {
    std::env::var_os("CI").is_none() && std::env::var_os(REGENERATE).is_some()
}

fn generate(proto: &Path) -> BTreeMap<String, String> {
    let mut sources = Vec::new();
    collect_protos(proto, &mut sources);
    sources.sort();
    let descriptors = protox::compile(&sources, [proto]).expect("proto/ compiles");

    let out = TemporaryFolder::new();
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .bytes(".")
        // Few watches request `prev_kv`. Boxing it keeps the events of all others small.
        .boxed(".mvccpb.Event.prev_kv")
        .skip_debug(SECRETS)
        .emit_rerun_if_changed(false)
        .out_dir(&out.0)
        .compile_fds(descriptors)
        .expect("the generator accepts the compiled descriptors");
    read_folder(&out.0)
}

fn collect_protos(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        if path.is_dir() {
            collect_protos(&path, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            found.push(path);
        }
    }
}

fn differences(
    checked_in: &BTreeMap<String, String>,
    fresh: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut stale: Vec<String> = fresh
        .iter()
        .filter_map(|(name, text)| match checked_in.get(name) {
            None => Some(format!("{name} is missing")),
            Some(old) if old == text => None,
            Some(old) => {
                let same = old.lines().zip(text.lines()).take_while(|(a, b)| a == b);
                Some(format!("{name} differs in line {}", same.count() + 1))
            }
        })
        .collect();
    stale.extend(
        checked_in
            .keys()
            .filter(|name| !fresh.contains_key(*name))
            .map(|name| format!("{name} is no longer generated")),
    );
    stale
}

fn rewrite(folder: &Path, fresh: &BTreeMap<String, String>) {
    fs::create_dir_all(folder).expect("the folder of generated code can be created");
    for path in entries(folder) {
        fs::remove_file(&path).expect("old generated code can be removed");
    }
    for (name, text) in fresh {
        fs::write(folder.join(name), text).expect("generated code can be written");
    }
}

fn read_folder(folder: &Path) -> BTreeMap<String, String> {
    entries(folder)
        .into_iter()
        .map(|path| {
            let name = path.file_name().expect("an entry has a name");
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{} is not readable: {error}", path.display()));
            // A checkout on Windows may have changed the line endings.
            (
                name.to_string_lossy().into_owned(),
                text.replace("\r\n", "\n"),
            )
        })
        .collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{} is not readable: {error}", folder.display()))
        .map(|entry| entry.expect("a folder can be listed").path())
        .collect()
}

struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("actix-etcd-codegen-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder can be created");
        Self(path)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A leftover folder must not hide the result of the test.
        drop(fs::remove_dir_all(&self.0));
    }
}
