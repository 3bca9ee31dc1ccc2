/* Whose plans are loaded: the user's own key, and keys that the user listed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engines/plans_impl.h"

enum { TRUST_LIST_MAX = 1 << 20 };

enum mlo_status plan_place(const char *variable, const char *fallback, const char *name, char **out,
                           struct mlo_error *err)
{
    const char *base = getenv(variable), *home = getenv("HOME");
    *out = NULL;
    if (base && *base == '/')
        *out = mlo_fs_join(base, "mlopt", name, NULL);
    else if (home && *home)
        *out = mlo_fs_join(home, fallback, "mlopt", name, NULL);
    else
        return mlo_error_set(err, MLO_EUNAVAILABLE,
                             "there is no home folder for plans' keys and their cache (HOME is empty)");
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* The folder of `path`, made when it is not there, for this user alone. */
static enum mlo_status make_folder(const char *path, struct mlo_error *err)
{
    char *folder = strdup(path);
    if (!folder)
        return mlo_error_nomem(err);
    *strrchr(folder, '/') = '\0';
    enum mlo_status status = mlo_fs_mkdirs_private(folder, err);
    free(folder);
    return status;
}

enum mlo_status mlo_plan_own_key(const char *path, struct mlo_sign_key **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *usual = NULL;
    if (!path) {
        MLO_TRY(plan_place("XDG_CONFIG_HOME", ".config", "plan.key", &usual, err));
        MLO_TRY(make_folder(usual, err));
    }
    const char *at = path ? path : usual;
    status = mlo_fs_exists(at) ? MLO_EEXISTS : mlo_sign_key_create(at, out, err);
    if (status == MLO_EEXISTS) { /* perhaps since a moment ago */
        if (err)
            *err = (struct mlo_error){0};
        status = mlo_sign_key_load(at, out, err);
    }
out:
    free(usual);
    return status;
}

/* The key's line in a list; keys are compared, comments are for people. */
static bool lists(const char *text, const struct mlo_public_key *signer)
{
    while (*text) {
        char word[MLO_PUBLIC_KEY_TEXT_SIZE];
        size_t line = strcspn(text, "\n"), n = strcspn(text, " \t\r\n");
        struct mlo_public_key key;
        if (n < sizeof word) {
            memcpy(word, text, n);
            word[n] = '\0';
            if (mlo_public_key_parse(word, &key) && mlo_public_key_eq(&key, signer))
                return true;
        }
        text += line + (text[line] == '\n');
    }
    return false;
}

/* A list that others can write to is no list of the user's. */
static enum mlo_status is_listed(const char *path, const struct mlo_public_key *signer, bool *listed,
                                 struct mlo_error *err)
{
    struct stat st;
    struct mlo_buf text = MLO_BUF_INIT;
    *listed = false;
    if (stat(path, &st) < 0)
        return MLO_OK;
    if (st.st_uid != geteuid() || (st.st_mode & 022)) {
        mlo_error_set(err, MLO_EFORBIDDEN, "others can change the list of trusted keys %s", path);
        mlo_error_hint(err, "chmod 600 %s, and look through it", path);
        return MLO_EFORBIDDEN;
    }
    enum mlo_status status = mlo_fs_read(path, TRUST_LIST_MAX, &text, err);
    if (status == MLO_OK)
        *listed = lists(mlo_buf_str(&text), signer);
    mlo_buf_clear(&text);
    return status;
}

static bool is_own(const char *path, const struct mlo_public_key *signer)
{
    struct mlo_sign_key *key = NULL;
    if (!mlo_fs_exists(path) || mlo_sign_key_load(path, &key, NULL) != MLO_OK)
        return false;
    bool own = mlo_public_key_eq(mlo_sign_key_public(key), signer);
    mlo_sign_key_free(key);
    return own;
}

enum mlo_status plan_trusts(const struct mlo_public_key *signer, const struct mlo_plan_open_options *options,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *own = NULL, *list = NULL, text[MLO_PUBLIC_KEY_TEXT_SIZE];
    const char *env = getenv(MLO_PLAN_TRUST_ENV);
    bool trusted = env && lists(env, signer);
    for (size_t i = 0; options && i < options->trusted_count; i++)
        trusted |= mlo_public_key_eq(&options->trusted[i], signer);
    if (trusted)
        return MLO_OK;
    MLO_TRY(plan_place("XDG_CONFIG_HOME", ".config", "plan.key", &own, err));
    MLO_TRY(plan_place("XDG_CONFIG_HOME", ".config", "plan-trust", &list, err));
    if (is_own(own, signer))
        goto out;
    MLO_TRY(is_listed(list, signer, &trusted, err));
    if (!trusted) {
        status = mlo_error_set(err, MLO_EAUTH, "the plan was signed by %s, which is not trusted",
                               mlo_public_key_text(signer, text));
        mlo_error_hint(
            err, "a plan is a program: if you know who that is, put the key into %s or give --trust", list);
    }
out:
    free(own);
    free(list);
    return status;
}

enum mlo_status mlo_plan_key_trusted(const struct mlo_public_key *signer, struct mlo_error *err)
{
    return plan_trusts(signer, NULL, err);
}
