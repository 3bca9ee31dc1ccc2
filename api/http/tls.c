#include "api/http/tls.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHAIN_MAX = 16, FILE_MAX = 1 << 20, LOOK_EVERY_MS = 1000 };
/* A handshake that began with a pair uses it until it ends, and the server gives none so long. */
#define KEPT_NS (600 * 1000000000ULL)

const char mlo_tls_priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:%SERVER_PRECEDENCE";

/* A certificate with those of its issuers, and its key. */
struct pair {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned count;
    gnutls_privkey_t key;
    uint64_t replaced_ns;
    struct pair *older;
};

/* What tells that a file is another. */
struct stamp {
    struct {
        dev_t device;
        ino_t inode;
        off_t size;
        struct timespec changed;
    } file[2];
};

struct mlo_tls {
    char *cert_path, *key_path;
    pthread_mutex_t lock;
    struct pair *now;
    struct stamp seen;
    uint64_t looked_ns;
};

static struct mlo_tls *_Atomic serving;

static void pair_free(struct pair *pair)
{
    if (!pair)
        return;
    for (unsigned i = 0; i < pair->count; i++)
        gnutls_pcert_deinit(&pair->chain[i]);
    if (pair->key)
        gnutls_privkey_deinit(pair->key);
    free(pair);
}

static enum mlo_status bad_pem(const char *path, const char *what, int rc, struct mlo_error *err)
{
    mlo_error_set(err, MLO_EFORMAT, "%s holds no %s in PEM: %s", path, what, gnutls_strerror(rc));
    mlo_error_where(err, "%s", path);
    mlo_error_hint(
        err, "%s",
        rc == GNUTLS_E_DECRYPTION_FAILED
            ? "the key must not have a passphrase: openssl pkey -in KEY -out KEY.plain"
            : "a file in PEM begins with -----BEGIN; the certificate's file holds the server's own "
              "first, then those of its issuers");
    return MLO_EFORMAT;
}

static enum mlo_status read_file(const char *path, struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_fs_read(path, FILE_MAX, out, err);
    if (status != MLO_OK)
        mlo_error_where(err, "%s", path);
    return status;
}

static enum mlo_status read_chain(const char *path, struct pair *pair, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    MLO_TRY(read_file(path, &text, err));
    gnutls_datum_t pem = {(unsigned char *)text.data, (unsigned)text.len};
    pair->count = CHAIN_MAX;
    int rc = gnutls_pcert_list_import_x509_raw(pair->chain, &pair->count, &pem, GNUTLS_X509_FMT_PEM,
                                               GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
    if (rc < 0) {
        pair->count = 0;
        status = bad_pem(path, "certificate", rc, err);
    }
out:
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status read_key(const char *path, struct pair *pair, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    MLO_TRY(read_file(path, &text, err));
    gnutls_datum_t pem = {(unsigned char *)text.data, (unsigned)text.len};
    int rc = gnutls_privkey_init(&pair->key);
    if (rc >= 0)
        rc = gnutls_privkey_import_x509_raw(pair->key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (rc < 0)
        status = bad_pem(path, "private key", rc, err);
out:
    if (text.data)
        explicit_bzero(text.data, text.len);
    mlo_buf_clear(&text);
    return status;
}

/* Whether the key is that of the first certificate: both have one public key. */
static enum mlo_status fits(const struct pair *pair, const char *cert_path, const char *key_path,
                            struct mlo_error *err)
{
    unsigned char ids[2][64];
    size_t sizes[2] = {sizeof ids[0], sizeof ids[1]};
    gnutls_pubkey_t of_key = NULL;
    enum mlo_status status = MLO_OK;
    int rc = gnutls_pubkey_init(&of_key);
    if (rc >= 0)
        rc = gnutls_pubkey_import_privkey(of_key, pair->key, 0, 0);
    if (rc >= 0)
        rc = gnutls_pubkey_get_key_id(pair->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, ids[0], &sizes[0]);
    if (rc >= 0)
        rc = gnutls_pubkey_get_key_id(of_key, GNUTLS_KEYID_USE_SHA256, ids[1], &sizes[1]);
    if (rc < 0) {
        status = bad_pem(key_path, "private key", rc, err);
    } else if (sizes[0] != sizes[1] || memcmp(ids[0], ids[1], sizes[0]) != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "the key in %s is not the key of the certificate in %s",
                               key_path, cert_path);
        mlo_error_where(err, "%s", key_path);
        mlo_error_hint(err,
                       "the first certificate of the file must be the server's own; openssl x509 -in CERT "
                       "-noout -pubkey and openssl pkey -in KEY -pubout print what must be the same");
    }
    gnutls_pubkey_deinit(of_key);
    return status;
}

static enum mlo_status pair_load(const char *cert_path, const char *key_path, struct pair **out,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    struct pair *pair = calloc(1, sizeof *pair);
    if (!pair)
        return mlo_error_nomem(err);
    MLO_TRY(read_chain(cert_path, pair, err));
    MLO_TRY(read_key(key_path, pair, err));
    MLO_TRY(fits(pair, cert_path, key_path, err));
    *out = pair;
    pair = NULL;
out:
    pair_free(pair);
    return status;
}

/* --- what a certificate says ------------------------------------------------------------------- */

static void one_name(unsigned type, const unsigned char *bytes, size_t size, struct mlo_buf *out)
{
    const char *between = out->len ? ", " : "";
    if (type == GNUTLS_SAN_DNSNAME)
        mlo_buf_printf(out, "%s%.*s", between, (int)MLO_MIN(size, 253), (const char *)bytes);
    else if (type == GNUTLS_SAN_IPADDRESS && size == 4)
        mlo_buf_printf(out, "%s%u.%u.%u.%u", between, bytes[0], bytes[1], bytes[2], bytes[3]);
    else if (type == GNUTLS_SAN_IPADDRESS && size == 16)
        for (size_t i = 0; i < 16; i += 2)
            mlo_buf_printf(out, "%s%x", i ? ":" : between, (unsigned)(bytes[i] << 8 | bytes[i + 1]));
}

static enum mlo_status describe(const struct pair *pair, const char *cert_path, struct mlo_tls_facts *out,
                                struct mlo_error *err)
{
    gnutls_x509_crt_t cert = NULL;
    struct mlo_buf names = MLO_BUF_INIT;
    unsigned char name[512];
    size_t size = sizeof out->subject;
    enum mlo_status status = MLO_OK;
    int rc = gnutls_pcert_export_x509((gnutls_pcert_st *)&pair->chain[0], &cert);
    if (rc < 0)
        return bad_pem(cert_path, "certificate", rc, err);
    if (gnutls_x509_crt_get_dn(cert, out->subject, &size) < 0)
        out->subject[0] = '\0';
    out->not_before_us = (int64_t)gnutls_x509_crt_get_activation_time(cert) * 1000000;
    out->not_after_us = (int64_t)gnutls_x509_crt_get_expiration_time(cert) * 1000000;
    for (unsigned i = 0; i < 64; i++) {
        size = sizeof name;
        rc = gnutls_x509_crt_get_subject_alt_name(cert, i, name, &size, NULL);
        if (rc == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
            break;
        if (rc >= 0)
            one_name((unsigned)rc, name, size, &names);
    }
    snprintf(out->names, sizeof out->names, "%s", mlo_buf_str(&names));
    mlo_buf_clear(&names);
    gnutls_x509_crt_deinit(cert);
    return status;
}

static enum mlo_status valid_now(const struct mlo_tls_facts *facts, const char *cert_path,
                                 struct mlo_error *err)
{
    char when[32];
    int64_t now = mlo_clock_utc_us();
    if (now > facts->not_after_us) {
        mlo_error_set(err, MLO_EINVAL, "the certificate in %s expired on %s", cert_path,
                      mlo_clock_format(facts->not_after_us, when));
        mlo_error_hint(err, "renew it and put the new one in its place: the server takes it up by itself");
    } else if (now < facts->not_before_us) {
        mlo_error_set(err, MLO_EINVAL, "the certificate in %s is valid from %s on", cert_path,
                      mlo_clock_format(facts->not_before_us, when));
        mlo_error_hint(err, "is this machine's clock right?");
    } else {
        return MLO_OK;
    }
    mlo_error_where(err, "%s", cert_path);
    return MLO_EINVAL;
}

enum mlo_status mlo_tls_check(const char *cert_path, const char *key_path, struct mlo_tls_facts *out,
                              struct mlo_error *err)
{
    struct mlo_tls_facts own = {.subject = ""}, *facts = out ? out : &own;
    struct pair *pair = calloc(1, sizeof *pair);
    struct stat st;
    enum mlo_status status;
    memset(facts, 0, sizeof *facts);
    if (!pair)
        return mlo_error_nomem(err);
    facts->key_is_open = stat(key_path, &st) == 0 && (st.st_mode & S_IROTH);
    MLO_TRY(read_chain(cert_path, pair, err));
    MLO_TRY(describe(pair, cert_path, facts, err));
    MLO_TRY(read_key(key_path, pair, err));
    MLO_TRY(fits(pair, cert_path, key_path, err));
    MLO_TRY(valid_now(facts, cert_path, err));
out:
    pair_free(pair);
    return status;
}

/* --- serving it -------------------------------------------------------------------------------- */

static void look(const struct mlo_tls *tls, struct stamp *out)
{
    const char *paths[] = {tls->cert_path, tls->key_path};
    memset(out, 0, sizeof *out); /* compared as bytes */
    for (size_t i = 0; i < MLO_COUNT(paths); i++) {
        struct stat st;
        if (stat(paths[i], &st) != 0)
            continue;
        out->file[i].device = st.st_dev;
        out->file[i].inode = st.st_ino;
        out->file[i].size = st.st_size;
        out->file[i].changed = st.st_mtim;
    }
}

/* Says what is served from now on. */
static void tell(const struct mlo_tls *tls, const char *what)
{
    struct mlo_tls_facts facts;
    struct mlo_error err = {0};
    char until[32] = "";
    enum mlo_status status = describe(tls->now, tls->cert_path, &facts, &err);
    if (status == MLO_OK)
        status = valid_now(&facts, tls->cert_path, &err);
    if (status != MLO_OK) {
        mlo_log_error(MLO_LOG_ERROR, "clients will refuse this server's certificate", &err);
        return;
    }
    mlo_log(MLO_LOG_INFO, what, "names", facts.names, "until", mlo_clock_format(facts.not_after_us, until),
            NULL);
}

enum mlo_status mlo_tls_open(const char *cert_path, const char *key_path, struct mlo_tls **out,
                             struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tls *none = NULL;
    *out = NULL;
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES ||
        MHD_is_feature_supported(MHD_FEATURE_HTTPS_CERT_CALLBACK2) != MHD_YES) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "this machine's libmicrohttpd was built without TLS");
        mlo_error_hint(err, "Debian's libmicrohttpd12 has it; or let a proxy in front speak TLS");
        return MLO_EUNSUPPORTED;
    }
    struct mlo_tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return mlo_error_nomem(err);
    pthread_mutex_init(&tls->lock, NULL);
    tls->cert_path = strdup(cert_path);
    tls->key_path = strdup(key_path);
    if (!tls->cert_path || !tls->key_path) {
        status = mlo_error_nomem(err);
        goto out;
    }
    look(tls, &tls->seen);
    MLO_TRY(pair_load(cert_path, key_path, &tls->now, err));
    if (!atomic_compare_exchange_strong(&serving, &none, tls)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "this process serves TLS already");
        goto out;
    }
    tell(tls, "serving TLS");
    *out = tls;
    tls = NULL;
out:
    mlo_tls_close(tls);
    return status;
}

void mlo_tls_close(struct mlo_tls *tls)
{
    struct mlo_tls *own = tls;
    if (!tls)
        return;
    atomic_compare_exchange_strong(&serving, &own, NULL);
    while (tls->now) {
        struct pair *older = tls->now->older;
        pair_free(tls->now);
        tls->now = older;
    }
    pthread_mutex_destroy(&tls->lock);
    free(tls->cert_path);
    free(tls->key_path);
    free(tls);
}

/* Frees the pairs that no handshake can use any more. */
static void forget_old(struct pair *now, uint64_t now_ns)
{
    for (struct pair **at = &now->older; *at;) {
        struct pair *pair = *at;
        if (now_ns - pair->replaced_ns < KEPT_NS) {
            at = &pair->older;
            continue;
        }
        *at = pair->older;
        pair_free(pair);
    }
}

void mlo_tls_refresh(struct mlo_tls *tls)
{
    struct stamp stamp;
    struct mlo_error err = {0};
    struct pair *pair;
    uint64_t now_ns = mlo_clock_ns();
    if (now_ns - tls->looked_ns < (uint64_t)LOOK_EVERY_MS * 1000000)
        return;
    tls->looked_ns = now_ns;
    look(tls, &stamp);
    if (memcmp(&stamp, &tls->seen, sizeof stamp) == 0)
        return;
    tls->seen = stamp;
    if (pair_load(tls->cert_path, tls->key_path, &pair, &err) != MLO_OK) {
        mlo_log_error(MLO_LOG_WARN, "a changed certificate is not taken up; the one before is served on",
                      &err);
        return;
    }
    pthread_mutex_lock(&tls->lock);
    tls->now->replaced_ns = now_ns;
    pair->older = tls->now;
    tls->now = pair;
    forget_old(pair, now_ns);
    pthread_mutex_unlock(&tls->lock);
    tell(tls, "the certificate was renewed");
}

static int give(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certs,
                unsigned *count, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_count, gnutls_privkey_t *key,
                unsigned *flags)
{
    MLO_UNUSED(session);
    MLO_UNUSED(info);
    struct mlo_tls *tls = atomic_load(&serving);
    *ocsp = NULL;
    *ocsp_count = 0;
    *flags = 0; /* they stay ours */
    if (!tls)
        return -1;
    pthread_mutex_lock(&tls->lock);
    *certs = tls->now->chain;
    *count = tls->now->count;
    *key = tls->now->key;
    pthread_mutex_unlock(&tls->lock);
    return 0;
}

void *mlo_tls_callback(void)
{
    gnutls_certificate_retrieve_function3 *function = give;
    void *out;
    memcpy(&out, &function, sizeof out); /* as libmicrohttpd's variable arguments want it */
    return out;
}
