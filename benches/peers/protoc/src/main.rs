//! Prints the path of protoc.

fn main() {
    match protoc_bin_vendored::protoc_bin_path() {
        Ok(path) => println!("{}", path.display()),
        Err(error) => {
            eprintln!("there is no protoc for this platform ({error}): install it and set PROTOC");
            std::process::exit(1);
        }
    }
}
