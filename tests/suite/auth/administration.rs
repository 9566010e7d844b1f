//! Users, roles and permissions on a real cluster.

use actix_etcd::{
    Client, ErrorKind,
    auth::roles::{Access, Permission},
};
use testbed::Cluster;

#[tokio::test]
async fn users_are_added_changed_and_deleted() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let users = etcd.users();
    assert!(!format!("{:?}", users.add("ann", "swordfish")).contains("swordfish"));
    users.add("ann", "word").await.unwrap();
    users.add_without_password("bob").await.unwrap();
    let duplicate = users.add("ann", "word").await.unwrap_err();
    assert_eq!(duplicate.kind(), ErrorKind::UserAlreadyExists);
    assert_eq!(users.list().await.unwrap().users, ["ann", "bob"]);
    etcd.roles().add("reader").await.unwrap();
    users.grant_role("ann", "reader").await.unwrap();
    assert_eq!(users.get("ann").await.unwrap().roles, ["reader"]);
    users.revoke_role("ann", "reader").await.unwrap();
    let not_granted = users.revoke_role("ann", "reader").await.unwrap_err();
    assert_eq!(not_granted.kind(), ErrorKind::RoleNotGranted);
    users.change_password("ann", "other").await.unwrap();
    users.delete("bob").await.unwrap();
    let not_found = users.get("bob").await.unwrap_err();
    assert_eq!(not_found.kind(), ErrorKind::UserNotFound);
}

#[tokio::test]
async fn permissions_are_granted_and_revoked() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let roles = etcd.roles();
    roles.add("r").await.unwrap();
    let granted = [
        (Permission::read("a"), Access::Read, "a", ""),
        (Permission::write("b/").prefix(), Access::Write, "b/", "b0"),
        (
            Permission::read_write("c").range("d"),
            Access::Readwrite,
            "c",
            "d",
        ),
        (Permission::read("x").from_key(), Access::Read, "x", "\0"),
    ];
    for (permission, ..) in &granted {
        roles.grant("r", permission.clone()).await.unwrap();
    }
    let stored = roles.get("r").await.unwrap().permissions;
    let stored: Vec<_> = stored
        .iter()
        .map(|granted| {
            (
                granted.perm_type(),
                &granted.key[..],
                &granted.range_end[..],
            )
        })
        .collect();
    for (_, access, key, end) in &granted {
        assert!(
            stored.contains(&(*access, key.as_bytes(), end.as_bytes())),
            "{stored:?}"
        );
    }
    for (permission, ..) in granted {
        roles.revoke("r", permission).await.unwrap();
    }
    assert!(roles.get("r").await.unwrap().permissions.is_empty());
    let not_granted = roles.revoke("r", Permission::read("a")).await.unwrap_err();
    assert_eq!(not_granted.kind(), ErrorKind::PermissionNotGranted);
    assert_eq!(roles.list().await.unwrap().roles, ["r"]);
    roles.delete("r").await.unwrap();
    assert!(roles.list().await.unwrap().roles.is_empty());
}

#[tokio::test]
async fn client_enables_and_disables_authentication() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::builder(cluster.endpoints())
        .credentials("root", "secret")
        .connect()
        .await
        .unwrap();
    let without_root = etcd.auth().enable().await.unwrap_err();
    assert_eq!(without_root.kind(), ErrorKind::RootUserNotExist);
    etcd.users().add("root", "secret").await.unwrap();
    etcd.roles().add("root").await.unwrap();
    etcd.users().grant_role("root", "root").await.unwrap();
    etcd.auth().enable().await.unwrap();
    let anonymous = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = anonymous.get("k").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UserEmpty);
    let status = etcd.auth().status().await;
    match status {
        Ok(status) => assert!(status.enabled && status.revision > 0),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unimplemented);
            println!("skipped: etcd 3.4 has no authentication status request");
        }
    }
    etcd.auth().disable().await.unwrap();
    anonymous.get("k").await.unwrap();
}
