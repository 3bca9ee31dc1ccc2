#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/cli/core/cli.h"

void mlo_config_clear(struct mlo_config *config)
{
    free(config->url);
    free(config->token);
    free(config->ca_file);
    memset(config, 0, sizeof *config);
}

static enum mlo_status set_text(char **slot, const char *text, size_t n, struct mlo_error *err)
{
    char *copy = strndup(text, n);
    if (!copy)
        return mlo_error_nomem(err);
    free(*slot);
    *slot = copy;
    return MLO_OK;
}

enum mlo_status mlo_config_parse(const char *text, const char *name, struct mlo_config *out,
                                 struct mlo_error *err)
{
    static const char *const keys[] = {"url", "token", "ca-file"};
    int line = 0;
    while (*text) {
        size_t n = strcspn(text, "\n");
        line++;
        const char *p = text + strspn(text, " \t"), *end = text + n;
        text += n + (text[n] == '\n');
        while (end > p && strchr(" \t\r", end[-1]))
            end--;
        if (p >= end || *p == '#')
            continue;
        const char *eq = memchr(p, '=', (size_t)(end - p));
        if (!eq) {
            mlo_error_set(err, MLO_EFORMAT, "expected `key = value`");
            mlo_error_where(err, "%s:%d", name, line);
            return MLO_EFORMAT;
        }
        char key[32];
        size_t key_len = (size_t)(eq - p);
        while (key_len && strchr(" \t", p[key_len - 1]))
            key_len--;
        snprintf(key, sizeof key, "%.*s", (int)MLO_MIN(key_len, sizeof key - 1), p);
        const char *value = eq + 1 + strspn(eq + 1, " \t");
        size_t value_len = value < end ? (size_t)(end - value) : 0;
        enum mlo_status status;
        if (strcmp(key, "url") == 0) {
            status = set_text(&out->url, value, value_len, err);
        } else if (strcmp(key, "token") == 0) {
            status = set_text(&out->token, value, value_len, err);
        } else if (strcmp(key, "ca-file") == 0) {
            status = set_text(&out->ca_file, value, value_len, err);
        } else {
            status = mlo_error_set(err, MLO_EFORMAT, "unknown key '%s'", key);
            mlo_error_where(err, "%s:%d", name, line);
            const char *near = mlo_suggest(key, keys, MLO_COUNT(keys));
            if (near)
                mlo_error_hint(err, "did you mean %s?", near);
        }
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

/* "$<variable>/mlopt/<name>", or "$HOME/<fallback>/mlopt/<name>"; NULL when there is no home. */
static char *home_path(const char *variable, const char *fallback, const char *name)
{
    const char *base = getenv(variable), *home = getenv("HOME");
    if (base && *base == '/')
        return mlo_fs_join(base, "mlopt", name, NULL);
    return home && *home ? mlo_fs_join(home, fallback, "mlopt", name, NULL) : NULL;
}

enum mlo_status mlo_config_state_path(const char *name, char **out, struct mlo_error *err)
{
    *out = NULL;
    char *path = home_path("XDG_STATE_HOME", ".local/state", name);
    if (!path)
        return mlo_error_set(err, MLO_EUNAVAILABLE,
                             "there is no home folder to remember things in (HOME is empty)");
    char *slash = strrchr(path, '/');
    *slash = '\0';
    enum mlo_status status = mlo_fs_mkdirs(path, err);
    *slash = '/';
    if (status != MLO_OK)
        free(path);
    else
        *out = path;
    return status;
}

static enum mlo_status load_file(struct mlo_config *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    struct stat st;
    char *path = home_path("XDG_CONFIG_HOME", ".config", "config");
    if (!path || stat(path, &st) != 0)
        goto out;
    MLO_TRY(mlo_fs_read(path, 65536, &text, err));
    MLO_TRY(mlo_config_parse(mlo_buf_str(&text), path, out, err));
    if (out->token && (st.st_mode & 077)) {
        status = mlo_error_set(err, MLO_EAUTH, "%s holds a token and others can read it", path);
        mlo_error_hint(err, "chmod 600 %s", path);
        goto out;
    }
    out->url_from = out->url ? "config file" : NULL;
    out->token_from = out->token ? "config file" : NULL;
out:
    mlo_buf_clear(&text);
    free(path);
    return status;
}

enum mlo_status mlo_config_load(const char *flag_url, struct mlo_config *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    memset(out, 0, sizeof *out);
    MLO_TRY(load_file(out, err));
    const char *url = getenv("MLOPT_URL"), *token = getenv("MLOPT_TOKEN"), *ca = getenv("MLOPT_CA_FILE");
    if (url && *url) {
        MLO_TRY(set_text(&out->url, url, strlen(url), err));
        out->url_from = "MLOPT_URL";
    }
    if (token && *token) {
        MLO_TRY(set_text(&out->token, token, strlen(token), err));
        out->token_from = "MLOPT_TOKEN";
    }
    if (ca && *ca)
        MLO_TRY(set_text(&out->ca_file, ca, strlen(ca), err));
    if (flag_url) {
        MLO_TRY(set_text(&out->url, flag_url, strlen(flag_url), err));
        out->url_from = "--url";
    }
    if (!out->url) {
        MLO_TRY(set_text(&out->url, MLO_DEFAULT_URL, strlen(MLO_DEFAULT_URL), err));
        out->url_from = "default";
    }
    if (!mlo_str_starts(out->url, "http://") && !mlo_str_starts(out->url, "https://")) {
        status = mlo_error_set(err, MLO_EUSAGE, "'%s' is no address of a server", out->url);
        mlo_error_where(err, "%s", out->url_from);
        mlo_error_hint(err, "it looks like " MLO_DEFAULT_URL);
        goto out;
    }
    for (size_t n = strlen(out->url); n && out->url[n - 1] == '/'; n--)
        out->url[n - 1] = '\0';
out:
    if (status != MLO_OK)
        mlo_config_clear(out);
    return status;
}
