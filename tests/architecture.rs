//! Rules of the source tree that no compiler checks: folders depend one way, names are unique, dependencies stay private.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Folders of `src` from the top to the bottom. A folder may import those in later rows only.
const LAYERS: &[&[&str]] = &[
    &["test_faults"],
    &["actor", "recipes"],
    &["layers"],
    &["client"],
    &[
        "auth",
        "cluster",
        "health",
        "kv",
        "lease",
        "maintenance",
        "server_side",
        "watch",
    ],
    &["request"],
    &["call"],
    &["balancer"],
    &["connection"],
    &["transport"],
    &["retry"],
    &["runtime"],
    &["error"],
    &["proto"],
];

/// File names that every actor folder or module has.
const COMMON_FILES: &[&str] = &[
    "actor.rs",
    "handlers.rs",
    "messages.rs",
    "mod.rs",
    "tests.rs",
];

/// Dependencies whose types must not appear in the public API; see the comments in `Cargo.toml`.
const PRIVATE_DEPENDENCIES: &[&str] = &[
    "actix_rt",
    "arc_swap",
    "fastrand",
    "h2",
    "rustls_native_certs",
    "sha2",
    "tokio",
    "tokio_rustls",
    "tonic_prost",
    "tracing",
    "zeroize",
];

struct SourceFile {
    /// Path below `src`.
    path: PathBuf,
    /// Text without comments and without the inline test module.
    code: String,
}

impl SourceFile {
    /// The first component of the path: the folder, or the name of a file directly in `src`.
    fn folder(&self) -> String {
        let first = self.path.components().next().unwrap();
        let name = first.as_os_str().to_str().unwrap();
        name.trim_end_matches(".rs").to_owned()
    }
}

fn source_files() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                if name != "generated" && name != "tests" {
                    folders.push(path);
                }
            } else if name != "tests.rs" && path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push(SourceFile {
                    path: path.strip_prefix(&root).unwrap().to_owned(),
                    code: without_tests_and_comments(&text),
                });
            }
        }
    }
    assert!(files.len() > 100, "src is not read");
    files
}

fn without_tests_and_comments(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the first segments of all paths that start with `crate::`, also in groups: `crate::{a::B, c}`.
fn imported_folders(code: &str) -> BTreeSet<String> {
    let mut imported = BTreeSet::new();
    for (start, _) in code.match_indices("crate::") {
        let rest = &code[start + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => imported.extend(group_heads(group)),
            None => {
                imported.insert(identifier(rest));
            }
        }
    }
    imported
}

/// Returns the first identifier of each item in a group of imports, given the text after its opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let (mut depth, mut expected) = (0_u32, true);
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => expected = true,
            letter if expected && (letter.is_alphabetic() || letter == '_') => {
                heads.push(identifier(&group[index..]));
                expected = false;
            }
            _ => {}
        }
    }
    heads
}

fn identifier(text: &str) -> String {
    text.chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .collect()
}

fn layer_of(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&folder))
}

#[test]
fn folders_depend_one_way() {
    let mut violations = Vec::new();
    for file in source_files() {
        let folder = file.folder();
        if folder == "lib" {
            continue;
        }
        let own = layer_of(&folder).unwrap_or_else(|| panic!("`{folder}` is in no layer"));
        for imported in imported_folders(&file.code) {
            if imported == folder {
                continue;
            }
            let allowed = layer_of(&imported).is_some_and(|layer| layer > own);
            if !allowed {
                violations.push(format!("{} imports {imported}", file.path.display()));
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn grouped_imports_are_recognized() {
    let code =
        "use crate::{\n    call::{Caller, deadline_in},\n    error::Error,\n};\ncrate::proto::X";
    let found: Vec<_> = imported_folders(code).into_iter().collect();
    assert_eq!(found, ["call", "error", "proto"]);
}

#[test]
fn file_names_are_unique() {
    let mut paths: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in source_files() {
        let name = file.path.file_name().unwrap().to_str().unwrap();
        if !COMMON_FILES.contains(&name) {
            paths.entry(name.to_owned()).or_default().push(file.path);
        }
    }
    paths.retain(|_, files| files.len() > 1);
    assert!(paths.is_empty(), "{paths:#?}");
}

#[test]
fn type_names_are_unique() {
    let mut types: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for file in source_files() {
        for line in file.code.lines() {
            let line = line.trim_start_matches("pub(crate) ");
            let line = line
                .trim_start_matches("pub(super) ")
                .trim_start_matches("pub ");
            for keyword in ["struct ", "enum ", "trait ", "type "] {
                if let Some(rest) = line.strip_prefix(keyword) {
                    let paths = types.entry(identifier(rest)).or_default();
                    paths.insert(file.path.clone());
                }
            }
        }
    }
    // The same type without the feature `tls`.
    types.remove("Tls");
    types.retain(|_, paths| paths.len() > 1);
    assert!(types.is_empty(), "{types:#?}");
}

#[test]
fn public_signatures_name_no_private_dependency() {
    let mut violations = Vec::new();
    for file in source_files() {
        let foreign = foreign_names(&file.code);
        for signature in public_signatures(&file.code) {
            let words = signature.split(|c: char| !c.is_alphanumeric() && c != '_');
            for word in words.filter(|word| foreign.contains(*word)) {
                violations.push(format!("{}: {word} in `{signature}`", file.path.display()));
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Returns the signatures of public functions and the lines of other public items, without imports.
fn public_signatures(code: &str) -> Vec<&str> {
    let mut signatures = Vec::new();
    let mut start = 0;
    for line in code.split_inclusive('\n') {
        let rest = &code[start..];
        start += line.len();
        let item = line.trim_start();
        if !item.starts_with("pub ") || item.starts_with("pub use ") {
            continue;
        }
        let end = if item.contains("fn ") {
            rest.find(['{', ';']).unwrap_or(line.len())
        } else {
            line.len()
        };
        signatures.push(rest[..end].trim());
    }
    signatures
}

#[test]
fn public_signatures_span_lines() {
    let code = "pub fn a(\n    b: Instant,\n) -> C {\n    pub d: E,\nfn private(f: G) {}";
    assert_eq!(
        public_signatures(code),
        ["pub fn a(\n    b: Instant,\n) -> C", "pub d: E,"]
    );
}

/// Returns the names that a file imports from private dependencies, and the names of these dependencies.
fn foreign_names(code: &str) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = PRIVATE_DEPENDENCIES
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    for statement in code.split(';') {
        let Some((_, import)) = statement.rsplit_once("\nuse ") else {
            continue;
        };
        if !PRIVATE_DEPENDENCIES.contains(&identifier(import).as_str()) {
            continue;
        }
        let words = import.split(|c: char| !c.is_alphanumeric() && c != '_');
        names.extend(
            words
                .filter(|word| word.starts_with(char::is_uppercase))
                .map(str::to_owned),
        );
    }
    names
}

#[test]
fn contributing_names_existing_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let mut named = 0;
    for section in text.split("\n#") {
        let walk = section.starts_with("## A");
        let mut seen = BTreeSet::new();
        let paths = section.split('`').filter(|word| {
            ["src/", "tests/"]
                .iter()
                .any(|folder| word.starts_with(folder))
        });
        for path in paths {
            assert!(root.join(path).exists(), "{path} does not exist");
            assert!(seen.insert(path) || !walk, "{path} is named twice");
            named += 1;
        }
    }
    assert!(named > 50, "only {named} files are named");
}
