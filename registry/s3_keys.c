/* Where the keys come from: a named file, the environment, the user's file. */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

enum { FILE_MAX = 1 << 20, CUSTOMER_KEY_SIZE = 32 };

static const char *set_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool copy(char **to, const char *from)
{
    free(*to);
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t n = strlen(text);
    while (n && strchr(" \t\r", text[n - 1]))
        text[--n] = '\0';
    return text;
}

/* "[profile]" and "name = value" lines, as the AWS tools write them. */
static enum mlo_status read_profile(struct mlo_s3 *s3, char *text, const char *profile, struct mlo_error *err)
{
    const struct {
        const char *name;
        char **value;
    } wanted[] = {{"aws_access_key_id", &s3->access_key},
                  {"aws_secret_access_key", &s3->secret_key},
                  {"aws_session_token", &s3->session_token}};
    bool inside = false;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        line = trim(line);
        size_t n = strlen(line);
        if (*line == '[' && line[n - 1] == ']') {
            line[n - 1] = '\0';
            inside = strcmp(trim(line + 1), profile) == 0;
            continue;
        }
        char *equals = strchr(line, '=');
        if (!inside || !equals || *line == '#' || *line == ';')
            continue;
        *equals = '\0';
        for (size_t i = 0; i < MLO_COUNT(wanted); i++)
            if (strcmp(trim(line), wanted[i].name) == 0 && !copy(wanted[i].value, trim(equals + 1)))
                return mlo_error_nomem(err);
    }
    return MLO_OK;
}

static enum mlo_status read_file(struct mlo_s3 *s3, const char *path, const char *profile,
                                 struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    MLO_TRY(mlo_fs_read(path, FILE_MAX, &text, err));
    if (text.data)
        MLO_TRY(read_profile(s3, text.data, profile, err));
    if (!s3->access_key || !s3->secret_key || !*s3->access_key || !*s3->secret_key) {
        status = mlo_error_set(err, MLO_EAUTH, "profile '%s' of %s has no S3 keys", profile, path);
        mlo_error_hint(err,
                       "write [%s], aws_access_key_id = …, aws_secret_access_key = … there, or name "
                       "another profile with ?profile=",
                       profile);
    }
out:
    if (text.data)
        OPENSSL_cleanse(text.data, text.len);
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_s3_read_keys(struct mlo_s3 *s3, const char *file, const char *profile,
                                 struct mlo_error *err)
{
    const char *id = set_env("AWS_ACCESS_KEY_ID"), *secret = set_env("AWS_SECRET_ACCESS_KEY");
    const char *home = set_env("HOME"), *named = file;
    char *own = NULL;
    enum mlo_status status;
    if (!file && !profile && id && secret) {
        bool ok = copy(&s3->access_key, id) && copy(&s3->secret_key, secret) &&
                  copy(&s3->session_token, set_env("AWS_SESSION_TOKEN"));
        return ok ? MLO_OK : mlo_error_nomem(err);
    }
    if (!profile)
        profile = set_env("AWS_PROFILE") ? set_env("AWS_PROFILE") : "default";
    if (!file)
        file = named = set_env("AWS_SHARED_CREDENTIALS_FILE");
    if (!file && home)
        file = own = mlo_fs_join(home, ".aws", "credentials", NULL);
    if (file && (named || mlo_fs_exists(file))) {
        status = read_file(s3, file, profile, err);
        if (status != MLO_OK)
            mlo_error_prefix(err, "the keys of the S3 store");
    } else {
        status = mlo_error_set(err, MLO_EAUTH, "there are no keys for the S3 store");
        mlo_error_hint(err, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with "
                            "?credentials=/path in the store's address");
    }
    free(own);
    return status;
}

static char *base64(const uint8_t *bytes, size_t size)
{
    char *out = malloc((size + 2) / 3 * 4 + 1);
    if (out)
        EVP_EncodeBlock((unsigned char *)out, bytes, (int)size);
    return out;
}

enum mlo_status mlo_s3_read_customer_key(struct mlo_s3 *s3, const char *path, struct mlo_error *err)
{
    struct mlo_buf key = MLO_BUF_INIT;
    uint8_t md5[EVP_MAX_MD_SIZE];
    unsigned n;
    enum mlo_status status;
    MLO_TRY(mlo_fs_read(path, FILE_MAX, &key, err));
    if (key.len != CUSTOMER_KEY_SIZE) {
        status = mlo_error_set(err, MLO_EINVAL, "the encryption key %s has %zu bytes, not %d", path, key.len,
                               CUSTOMER_KEY_SIZE);
        mlo_error_hint(err, "make one with: openssl rand -out FILE 32");
        goto out;
    }
    if (EVP_Digest(key.data, key.len, md5, &n, EVP_md5(), NULL) != 1 ||
        !(s3->customer_key = base64((const uint8_t *)key.data, key.len)) ||
        !(s3->customer_md5 = base64(md5, n)))
        status = mlo_error_nomem(err);
out:
    if (key.data)
        OPENSSL_cleanse(key.data, key.len);
    mlo_buf_clear(&key);
    return status;
}
