/* The repository of a ledger on disk: a cache of what is in PostgreSQL, written by libgit2. Objects first,
 * what they hang on last: whoever reads beside it sees the ledger as it was, or as it is. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <git2.h>

#include "registry/ledger_impl.h"

#define BRANCH "refs/heads/main"

enum { BATCH = 200, PACK_TRIES = 8 };

static enum mlo_status git_failed(struct mlo_error *err, const char *what, const char *path)
{
    const git_error *e = git_error_last();
    return mlo_error_set(err, MLO_EIO, "%s %s: %s", what, path,
                         e && e->message ? e->message : "libgit2 failed");
}

static void start_library(void)
{
    git_libgit2_init(); /* for as long as the program runs */
    /* what some user wrote into a .gitconfig is not the ledger's; and libgit2 1.5 loses 20 kB for each entry
     * of the configuration that it looks through for a push */
    static const int levels[] = {GIT_CONFIG_LEVEL_PROGRAMDATA, GIT_CONFIG_LEVEL_SYSTEM, GIT_CONFIG_LEVEL_XDG,
                                 GIT_CONFIG_LEVEL_GLOBAL};
    for (size_t i = 0; i < MLO_COUNT(levels); i++)
        git_libgit2_opts(GIT_OPT_SET_SEARCH_PATH, levels[i], "");
}

static void library(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_library);
}

/* One writer of a repository at a time, on this machine. -1 and err. */
static int lock(const char *path, struct mlo_error *err)
{
    struct mlo_buf name = MLO_BUF_INIT;
    mlo_buf_printf(&name, "%s.lock", path);
    int fd = open(mlo_buf_str(&name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    while (fd >= 0 && flock(fd, LOCK_EX) != 0) {
        if (errno == EINTR)
            continue;
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        (void)mlo_error_errno(err, errno, "cannot lock %s", mlo_buf_str(&name));
    mlo_buf_clear(&name);
    return fd;
}

/* --- objects ------------------------------------------------------------------------------------ */

struct writer {
    struct mlo_ledger *ledger;
    git_odb *odb;
    const char *path;
};

static enum mlo_status put(void *arg, const char *type, const void *bytes, size_t size, struct mlo_error *err)
{
    const struct writer *w = arg;
    git_oid oid;
    mlo_ledger_step(w->ledger, type);
    if (git_odb_write(&oid, w->odb, bytes, size, git_object_string2type(type)) != 0)
        return git_failed(err, "cannot write into", w->path);
    return MLO_OK;
}

static enum mlo_status put_commit(struct writer *w, json_t *state, const struct mlo_rows *rows, int r,
                                  struct mlo_git_id *id, struct mlo_error *err)
{
    struct mlo_buf body = MLO_BUF_INIT, stored = MLO_BUF_INIT;
    char tree_line[64], hex[MLO_GIT_ID_TEXT_SIZE];
    const char *text = mlo_rows_text(rows, r, LEDGER_ROW_FILES);
    long long n = (long long)mlo_rows_i64(rows, r, LEDGER_ROW_N);
    json_t *files = NULL;
    struct mlo_git_id tree;
    enum mlo_status status;
    MLO_TRY(mlo_json_parse(text, strlen(text), "the files of a commit", &files, err));
    MLO_TRY(mlo_ledger_apply(state, files, put, w, err));
    MLO_TRY(mlo_ledger_tree(state, put, w, &tree, err));
    mlo_rows_bytes(rows, r, LEDGER_ROW_BODY, &body);
    mlo_rows_bytes(rows, r, LEDGER_ROW_ID, &stored);
    mlo_git_object_id("commit", mlo_buf_str(&body), body.len, id);
    snprintf(tree_line, sizeof tree_line, "tree %s\n", mlo_git_id_text(&tree, hex));
    if (!mlo_buf_ok(&body) || stored.len != sizeof id->bytes ||
        memcmp(stored.data, id->bytes, stored.len) != 0 || !mlo_str_starts(mlo_buf_str(&body), tree_line)) {
        status = mlo_error_set(err, MLO_EDIGEST, "commit %lld of the ledger is not what was written", n);
        mlo_error_hint(err, "mlopt audit verify tells what was changed");
        goto out;
    }
    MLO_TRY(put(w, "commit", mlo_buf_str(&body), body.len, err));
out:
    json_decref(files);
    mlo_buf_clear(&body);
    mlo_buf_clear(&stored);
    return status;
}

/* --- the state of what is there --------------------------------------------------------------------- */

static int note_entry(const char *root, const git_tree_entry *entry, void *arg)
{
    struct mlo_buf path = MLO_BUF_INIT;
    char hex[GIT_OID_HEXSZ + 1];
    if (git_tree_entry_type(entry) != GIT_OBJECT_BLOB)
        return 0;
    mlo_buf_printf(&path, "%s%s", root, git_tree_entry_name(entry));
    git_oid_tostr(hex, sizeof hex, git_tree_entry_id(entry));
    int rc = json_object_set_new(arg, mlo_buf_str(&path), json_string(hex));
    mlo_buf_clear(&path);
    return rc;
}

/* The commit that the branch is at, its number and files; false when the repository is not usable as it is.
 */
static bool read_tip(git_repository *repo, struct mlo_db_conn *conn, int64_t project_id, int64_t *n,
                     json_t *state, enum mlo_status *status, struct mlo_error *err)
{
    git_oid oid;
    git_commit *commit = NULL;
    git_tree *tree = NULL;
    struct mlo_git_id id;
    *n = 0;
    int rc = git_reference_name_to_id(&oid, repo, BRANCH);
    if (rc == GIT_ENOTFOUND)
        return true; /* empty */
    bool ok = rc == 0 && git_commit_lookup(&commit, repo, &oid) == 0 && git_commit_tree(&tree, commit) == 0 &&
              git_tree_walk(tree, GIT_TREEWALK_PRE, note_entry, state) == 0;
    if (ok) {
        memcpy(id.bytes, oid.id, sizeof id.bytes);
        *status = mlo_ledger_find(conn, project_id, &id, n, err);
        ok = *status == MLO_OK && *n > 0;
    }
    git_tree_free(tree);
    git_commit_free(commit);
    return ok;
}

static enum mlo_status open_repository(git_repository **repo, const char *path, struct mlo_error *err)
{
    git_repository_init_options options = GIT_REPOSITORY_INIT_OPTIONS_INIT;
    if (git_repository_open_bare(repo, path) == 0)
        return MLO_OK;
    mlo_fs_remove_tree(path); /* half made, or damaged */
    options.flags = GIT_REPOSITORY_INIT_BARE | GIT_REPOSITORY_INIT_MKDIR | GIT_REPOSITORY_INIT_MKPATH;
    options.initial_head = "main";
    return git_repository_init_ext(repo, path, &options) == 0 ? MLO_OK : git_failed(err, "cannot make", path);
}

static enum mlo_status move_branch(struct mlo_ledger *ledger, git_repository *repo, const char *path,
                                   const struct mlo_git_id *id, struct mlo_error *err)
{
    git_oid oid;
    git_reference *reference = NULL;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || syncfs(fd) != 0) { /* the objects, before what points at them */
        int e = errno;
        if (fd >= 0)
            close(fd);
        return mlo_error_errno(err, e, "cannot sync %s", path);
    }
    close(fd);
    memcpy(oid.id, id->bytes, sizeof oid.id);
    mlo_ledger_step(ledger, "before the branch");
    if (git_reference_create(&reference, repo, BRANCH, &oid, 1, NULL) != 0)
        return git_failed(err, "cannot move the branch of", path);
    git_reference_free(reference);
    mlo_ledger_step(ledger, "after the branch");
    return MLO_OK;
}

static enum mlo_status bring_up(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                git_repository *repo, const char *path, int64_t *n, json_t *state,
                                struct mlo_error *err)
{
    struct writer w = {.ledger = ledger, .path = path};
    struct mlo_rows rows = {0};
    struct mlo_git_id id;
    bool any = false;
    enum mlo_status status = MLO_OK;
    if (git_repository_odb(&w.odb, repo) != 0)
        return git_failed(err, "cannot open", path);
    for (int count = BATCH; count == BATCH;) {
        MLO_TRY(mlo_ledger_rows_after(conn, project_id, *n, BATCH, &rows, err));
        count = mlo_rows_count(&rows);
        for (int r = 0; r < count; r++, any = true) {
            MLO_TRY(put_commit(&w, state, &rows, r, &id, err));
            *n = mlo_rows_i64(&rows, r, LEDGER_ROW_N);
        }
    }
    if (any)
        MLO_TRY(move_branch(ledger, repo, path, &id, err));
out:
    mlo_rows_clear(&rows);
    git_odb_free(w.odb);
    return status;
}

enum mlo_status mlo_ledger_repo_sync(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                     const char *path, bool packs, struct mlo_error *err)
{
    git_repository *repo = NULL;
    struct mlo_error unpacked = {0};
    json_t *state = json_object();
    int64_t n;
    bool again = packs;
    enum mlo_status status = MLO_OK;
    library();
    int fd = lock(path, err);
    if (fd < 0) {
        json_decref(state);
        return err ? err->status : MLO_EIO;
    }
    MLO_TRY(open_repository(&repo, path, err));
    if (!mlo_ledger_packs_usable(path) || !read_tip(repo, conn, project_id, &n, state, &status, err)) {
        MLO_TRY(status);
        git_repository_free(repo); /* not the ledger's: made again */
        repo = NULL;
        json_object_clear(state);
        mlo_fs_remove_tree(path);
        n = 0;
        MLO_TRY(open_repository(&repo, path, err));
    }
    MLO_TRY(bring_up(ledger, conn, project_id, repo, path, &n, state, err));
    for (int tries = 0; again && tries < PACK_TRIES; tries++) {
        if (tries) {
            git_repository_free(repo);
            repo = NULL;
            MLO_TRY(open_repository(&repo, path, err));
        }
        if (mlo_ledger_pack(ledger, conn, project_id, repo, path, n, &again, &unpacked) != MLO_OK) {
            mlo_log_error(MLO_LOG_WARN, "a ledger's commits could not be packed: clones ask for each object",
                          &unpacked);
            again = false;
        }
    }
out:
    git_repository_free(repo);
    json_decref(state);
    close(fd);
    return status;
}

enum mlo_status mlo_ledger_tip(const char *path, struct mlo_git_id *out, struct mlo_error *err)
{
    git_repository *repo = NULL;
    git_oid oid;
    enum mlo_status status = MLO_OK;
    library();
    if (git_repository_open(&repo, path) != 0) {
        status = git_failed(err, "cannot open", path);
    } else if (git_reference_name_to_id(&oid, repo, "HEAD") != 0 &&
               git_reference_name_to_id(&oid, repo, BRANCH) != 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s has no commit", path);
    } else {
        memcpy(out->bytes, oid.id, sizeof out->bytes);
    }
    git_repository_free(repo);
    return status;
}

/* --- the mirror ------------------------------------------------------------------------------------ */

static int refused(const char *name, const char *why, void *arg)
{
    MLO_UNUSED(name);
    if (why)
        mlo_buf_puts(arg, why);
    return 0;
}

enum mlo_status mlo_ledger_repo_push(const char *path, const char *to, struct mlo_error *err)
{
    git_repository *repo = NULL, *bare = NULL;
    git_remote *remote = NULL;
    git_push_options options = GIT_PUSH_OPTIONS_INIT;
    struct mlo_buf why = MLO_BUF_INIT;
    char refspec[] = BRANCH ":" BRANCH, *specs[] = {refspec};
    const git_strarray refspecs = {specs, 1};
    git_remote_create_options create = GIT_REMOTE_CREATE_OPTIONS_INIT;
    enum mlo_status status = MLO_OK;
    int rc;
    library();
    if (!strstr(to, "://") && !mlo_fs_exists(to)) {
        MLO_TRY(open_repository(&bare, to, err));
        git_repository_free(bare);
    }
    options.callbacks.push_update_reference = refused;
    options.callbacks.payload = &why;
    if (git_repository_open_bare(&repo, path) != 0) {
        status = git_failed(err, "cannot open", path);
        goto out;
    }
    if (git_repository_is_empty(repo) == 1)
        goto out;
    create.repository = repo;
    /* the address as it is written: looking for another, 1.5 leaks */
    create.flags = GIT_REMOTE_CREATE_SKIP_INSTEADOF;
    rc = git_remote_create_with_opts(&remote, to, &create);
    rc = rc ? rc : git_remote_push(remote, &refspecs, &options);
    if (rc == GIT_ENONFASTFORWARD || why.len) {
        status =
            mlo_error_set(err, MLO_ECONFLICT, "the mirror %s has a history that %s does not continue%s%s", to,
                          path, why.len ? ": " : "", mlo_buf_str(&why));
        mlo_error_hint(err, "one of them was rewritten: keep both, and compare them with git log");
    } else if (rc != 0) {
        status = git_failed(err, "cannot push to", to);
    }
out:
    git_remote_free(remote);
    git_repository_free(repo);
    mlo_buf_clear(&why);
    return status;
}
