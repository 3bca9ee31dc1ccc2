/* Which code a work tree holds: remote, commit, and whether tracked files differ from it. */
#include <string.h>

#include <git2.h>

#include "api/cli/client/client.h"

static enum mlo_status git_failed(struct mlo_error *err, const char *what, const char *dir)
{
    const git_error *e = git_error_last();
    return mlo_error_set(err, MLO_EIO, "%s %s: %s", what, dir,
                         e && e->message ? e->message : "libgit2 failed");
}

/* The address of the remote that this branch follows, else of `origin`, else of the only one; NULL: none. The
 * text belongs to `config`, a snapshot. */
static const char *remote_of(git_repository *repository, git_reference *head, git_config *config)
{
    char key[300];
    const char *name = NULL, *address = NULL;
    git_strarray all = {0};
    if (git_reference_is_branch(head)) {
        snprintf(key, sizeof key, "branch.%.200s.remote", git_reference_shorthand(head));
        if (git_config_get_string(&name, config, key) != 0)
            name = NULL;
    }
    if ((!name || strcmp(name, ".") == 0) && git_remote_list(&all, repository) == 0 && all.count > 0) {
        name = all.count == 1 ? all.strings[0] : NULL;
        for (size_t i = 0; i < all.count; i++)
            if (strcmp(all.strings[i], "origin") == 0)
                name = all.strings[i];
    }
    if (name) {
        snprintf(key, sizeof key, "remote.%.200s.url", name);
        if (git_config_get_string(&address, config, key) != 0)
            address = NULL;
    }
    git_strarray_dispose(&all);
    return address;
}

/* As `git describe --dirty` asks it: files that git does not track do not count, a model that was just
 * written beside its code among them. */
static int is_dirty(git_repository *repository, bool *dirty)
{
    git_status_options options = GIT_STATUS_OPTIONS_INIT;
    git_status_list *list = NULL;
    options.show = GIT_STATUS_SHOW_INDEX_AND_WORKDIR;
    options.flags = 0; /* the default would list files that are not tracked */
    int failed = git_status_list_new(&list, repository, &options);
    if (!failed)
        *dirty = git_status_list_entrycount(list) > 0;
    git_status_list_free(list);
    return failed;
}

enum mlo_status mlo_client_code(const char *dir, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    git_repository *repository = NULL;
    git_reference *head = NULL;
    git_object *commit = NULL;
    git_config *config = NULL, *snapshot = NULL;
    struct mlo_buf remote = MLO_BUF_INIT;
    char id[GIT_OID_HEXSZ + 1];
    bool dirty = true;
    *out = NULL;
    git_libgit2_init();
    int found = git_repository_open_ext(&repository, dir, 0, NULL);
    if (found == GIT_ENOTFOUND) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s is in no work tree of git", dir);
        mlo_error_hint(err, "--code names the folder of the training code, a checkout");
        goto out;
    }
    if (found != 0) {
        status = git_failed(err, "cannot open the repository of", dir);
        goto out;
    }
    if (git_repository_is_bare(repository)) {
        status = mlo_error_set(err, MLO_EINVAL, "%s is a bare repository: it holds no code that ran", dir);
        goto out;
    }
    found = git_repository_head(&head, repository);
    if (found == GIT_EUNBORNBRANCH || found == GIT_ENOTFOUND) {
        status = mlo_error_set(err, MLO_EINVAL, "the repository of %s has no commit yet", dir);
        mlo_error_hint(err, "commit the training code first");
        goto out;
    }
    if (found != 0 || git_reference_peel(&commit, head, GIT_OBJECT_COMMIT) != 0 ||
        git_repository_config(&config, repository) != 0 || git_config_snapshot(&snapshot, config) != 0 ||
        is_dirty(repository, &dirty) != 0) {
        status = git_failed(err, "cannot read the repository of", dir);
        goto out;
    }
    const char *address = remote_of(repository, head, snapshot);
    if (address)
        mlo_git_remote_public(address, &remote);
    git_oid_tostr(id, sizeof id, git_object_id(commit));
    *out = mlo_buf_ok(&remote) ? json_pack("{s:s, s:b, s:s*}", "commit", id, "dirty", dirty, "remote",
                                           remote.len ? mlo_buf_str(&remote) : NULL)
                               : NULL;
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&remote);
    git_config_free(snapshot);
    git_config_free(config);
    git_object_free(commit);
    git_reference_free(head);
    git_repository_free(repository);
    git_libgit2_shutdown();
    return status;
}
