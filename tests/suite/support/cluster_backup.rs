//! Backups of a whole cluster, to restore an older state.

use std::{fs, path::Path};

use testbed::{Cluster, Member};

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn backup_folder(member: &Member) -> std::path::PathBuf {
    member.data_folder().with_extension("backup")
}

/// Stops all members, copies their data, and starts them again.
pub async fn back_up(cluster: &Cluster) {
    for member in cluster.members() {
        member.stop().await;
        copy_folder(&member.data_folder(), &backup_folder(&member));
    }
    cluster.start_all().await;
}

/// Kills all members, replaces their data by the backup, or removes it if there is none, and starts them again.
pub async fn restore(cluster: &Cluster) {
    for member in cluster.members() {
        member.kill();
    }
    for member in cluster.members() {
        fs::remove_dir_all(member.data_folder()).unwrap();
        if backup_folder(&member).exists() {
            fs::rename(backup_folder(&member), member.data_folder()).unwrap();
        }
    }
    cluster.start_all().await;
}
