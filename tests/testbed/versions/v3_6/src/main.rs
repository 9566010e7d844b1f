//! Prints the path of a real etcd 3.6 binary, for the testbed to run.

fn main() {
    match etcd_bin_vendored::etcd_bin_path() {
        Ok(path) => println!("{}", path.display()),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
