//! Prints the path of protoc.

fn main() {
    match protoc_bin_vendored::protoc_bin_path() {
        Ok(path) => println!("{}", path.display()),
        Err(error) => {
            eprintln!(
                "no protoc is packaged for this platform ({error}): install protoc and set PROTOC to its path"
            );
            std::process::exit(1);
        }
    }
}
