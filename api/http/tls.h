/* TLS of the server: a certificate with its key from two PEM files, read again when they change. GnuTLS, as
 * libmicrohttpd uses it. TLS 1.2 (RFC 5246) and 1.3 (RFC 8446), nothing older. */
#ifndef MLO_HTTP_TLS_H
#define MLO_HTTP_TLS_H

#include "base/base.h"

struct MHD_Daemon;

/* What the files say. */
struct mlo_tls_facts {
    char subject[256]; /* of the certificate, RFC 4514 */
    char names[512];   /* that it is for: "mlopt.example.org, 10.0.0.7"; "" when it names none */
    int64_t not_before_us, not_after_us;
    bool key_is_open; /* others than its owner may read the key's file */
};

/* Whether a server could use them now: both can be read, the key is that of the first certificate (the
 * server's own; those of its issuers follow), and it is valid. `out` (may be NULL) is filled as far as the
 * files were understood. MLO_EINVAL (expired, not valid yet, a key that does not fit), MLO_EFORMAT, or that
 * of reading. */
MLO_MUST_USE enum mlo_status mlo_tls_check(const char *cert_path, const char *key_path,
                                           struct mlo_tls_facts *out, struct mlo_error *err);

struct mlo_tls;
/* Loads them. One that has expired is served, with a line in the log: clients will say so, and a renewed one
 * is taken up. *out is yours: mlo_tls_close, after the daemon has stopped. A process has one of these at a
 * time (MLO_ECONFLICT): GnuTLS's callback is given nothing of ours. MLO_EUNSUPPORTED where libmicrohttpd has
 * no TLS.
 */
MLO_MUST_USE enum mlo_status mlo_tls_open(const char *cert_path, const char *key_path, struct mlo_tls **out,
                                          struct mlo_error *err);
void mlo_tls_close(struct mlo_tls *tls); /* NULL is allowed */
/* Looks whether the files changed since, once a second at most, and then loads them: connections that begin
 * from now on get what is there. Files that do not fit (one of two is renewed) are left alone until they
 * change again, with a line in the log. Of one thread. */
void mlo_tls_refresh(struct mlo_tls *tls);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK2. */
void *mlo_tls_callback(void);
/* For MHD_OPTION_HTTPS_PRIORITIES. */
extern const char mlo_tls_priorities[];

#endif
