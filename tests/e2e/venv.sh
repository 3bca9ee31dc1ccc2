# Sourced by the scripts here that check with what is on PyPI alone; before e2e.sh, which changes HOME.

# venv_of FOLDER REQUIREMENTS NAME PROGRAM [ARGUMENT…]: the virtual environment there, which is made where FOLDER/bin/PROGRAM does
# not run yet. Without python3-venv or PyPI the script is skipped, and says so.
venv_of() {
    local folder=$1 requirements=$2 name=$3 program=$4
    shift 4
    if "$folder/bin/$program" "$@" >/dev/null 2>&1; then return; fi
    rm -rf "$folder"
    python3 -m venv "$folder" >/dev/null 2>&1 || { echo "python3-venv is not installed"; exit 77; }
    "$folder/bin/pip" install --quiet --disable-pip-version-check --timeout 10 --retries 1 -r "$requirements" >/dev/null 2>&1 ||
        { rm -rf "$folder"; echo "$name is not here, and PyPI cannot be reached"; exit 77; }
}
