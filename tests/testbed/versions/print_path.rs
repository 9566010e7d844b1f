//! Prints the path of a real etcd binary, for the testbed to run. Each package here builds it with another release.

fn main() {
    match etcd_bin_vendored::etcd_bin_path() {
        Ok(path) => println!("{}", path.display()),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
