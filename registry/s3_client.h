/* A client of one bucket of an S3 server (Amazon S3 API Reference, 2006-03-01), over libcurl: signed
 * requests, retries with exponential backoff and full jitter for what can pass (5xx, 429, timeouts, cut
 * connections), none for what cannot (4xx). Every body is signed by its SHA-256, which the server checks,
 * also over https; payload "unsigned" leaves that out for parts of multipart uploads. What comes back is for
 * the caller to check. Errors name the bucket, the key, the HTTP status, S3's code, the request id, and what
 * to do. Safe from several threads. */
#ifndef MLO_REGISTRY_S3_CLIENT_H
#define MLO_REGISTRY_S3_CLIENT_H

#include "registry/s3_sign.h"

enum {
    MLO_S3_ETAG_SIZE = 80,
    MLO_S3_MODIFIED_SIZE = 40, /* ISO 8601 */
    MLO_S3_PARTS_MAX = 10000,
    MLO_S3_PART_MIN = 5 << 20, /* but for the last one */
};
#define MLO_S3_OBJECT_MAX (5ull << 30) /* of one request; above it, objects and copies are made in parts */

/* Texts are copied. NULL or 0 is the default in brackets. */
struct mlo_s3_options {
    const char *bucket;
    const char *endpoint; /* "https://host[:port]" [Amazon's of the region] */
    const char *region;   /* [AWS_REGION, AWS_DEFAULT_REGION, us-east-1] */
    const char *style;    /* "path" or "virtual": where the bucket is named [virtual on Amazon, else path] */
    const char *ca_file;  /* certificates that may sign the server's [the system's] */
    /* Keys: a file and profile that are named here; else AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
     * AWS_SESSION_TOKEN; else profile AWS_PROFILE or "default" of AWS_SHARED_CREDENTIALS_FILE or
     * ~/.aws/credentials. */
    const char *credentials_file, *profile;
    const char *encryption;   /* at rest: "AES256", "aws:kms" or "customer" [what the bucket does] */
    const char *kms_key;      /* with aws:kms [the bucket's] */
    const char *customer_key; /* with customer: a file that holds the 32 bytes */
    const char *payload;      /* of parts: "signed", or "unsigned", over https only [signed] */
    uint32_t connect_ms;      /* [5000] */
    uint32_t stall_ms;        /* no byte moved for so long: the connection is taken for dead [30000] */
    uint32_t attempts;        /* of one request, the first included [6] */
};

struct mlo_s3;

/* Reads keys; asks the server nothing. MLO_EINVAL for options that do not fit, MLO_EAUTH where there are no
 * keys. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_s3_open(const struct mlo_s3_options *options, struct mlo_s3 **out,
                                         struct mlo_error *err);
void mlo_s3_close(struct mlo_s3 *s3); /* NULL is fine */

struct mlo_s3_object {
    uint64_t size_bytes;
    char etag[MLO_S3_ETAG_SIZE];         /* with its quotes, as the server gave it */
    char modified[MLO_S3_MODIFIED_SIZE]; /* as the server gave it */
};

/* Is the bucket there, and may we use it? MLO_ENOTFOUND, MLO_EUNAVAILABLE. */
MLO_MUST_USE enum mlo_status mlo_s3_check_bucket(struct mlo_s3 *s3, struct mlo_error *err);
/* Makes the bucket; fine when it is there and ours. For tests and first steps. */
MLO_MUST_USE enum mlo_status mlo_s3_make_bucket(struct mlo_s3 *s3, struct mlo_error *err);

/* One request. `digest` is the SHA-256 of the bytes, NULL: it is computed. The ETag that comes back is
 * compared with the MD5 of the bytes where it is one (MLO_EDIGEST). MLO_ENOSPC when a quota is full. */
MLO_MUST_USE enum mlo_status mlo_s3_put(struct mlo_s3 *s3, const char *key, const void *bytes, size_t size,
                                        const struct mlo_digest *digest, struct mlo_error *err);
/* MLO_ENOTFOUND when it is not there. `out` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_s3_head(struct mlo_s3 *s3, const char *key, struct mlo_s3_object *out,
                                         struct mlo_error *err);
/* An absent one is fine. */
MLO_MUST_USE enum mlo_status mlo_s3_delete(struct mlo_s3 *s3, const char *key, struct mlo_error *err);

/* Takes the next bytes; a failure ends the transfer. */
typedef enum mlo_status mlo_s3_sink_fn(void *arg, const void *bytes, size_t size, struct mlo_error *err);
/* The object's bytes [offset, offset + length) into the sink, each exactly once and in order; length
 * UINT64_MAX: to the end. A cut connection goes on where it was cut, as long as the object is the same. More
 * than max_bytes is MLO_ETOOBIG before the sink sees any. `out` (or NULL) is the whole object. */
MLO_MUST_USE enum mlo_status mlo_s3_get(struct mlo_s3 *s3, const char *key, uint64_t offset, uint64_t length,
                                        uint64_t max_bytes, mlo_s3_sink_fn *sink, void *arg,
                                        struct mlo_s3_object *out, struct mlo_error *err);

/* An object as one request, up to MLO_S3_OBJECT_MAX, whose bytes come while it is under way and are kept
 * nowhere. Used by one thread at a time. */
struct mlo_s3_stream;
/* Asks whether the server takes it, again where a refusal may pass, until it wants the bytes or has said
 * nothing for 10 s; from here on a failure is final. The request is signed over `digest`: a server that looks
 * (mlo_s3_checks_digests) makes the object of bytes that hash to it, or none. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_s3_stream_open(struct mlo_s3 *s3, const char *key,
                                                const struct mlo_digest *digest, uint64_t size_bytes,
                                                struct mlo_s3_stream **out, struct mlo_error *err);
/* Waits until they are sent. With the last of size_bytes the server may make the object. MLO_EINVAL for more
 * than these. */
MLO_MUST_USE enum mlo_status mlo_s3_stream_write(struct mlo_s3_stream *stream, const void *bytes, size_t size,
                                                 struct mlo_error *err);
/* Waits for the answer, and asks whether the object is there with all of them. MLO_EDIGEST for bytes of
 * another digest, MLO_EINVAL when some are missing. */
MLO_MUST_USE enum mlo_status mlo_s3_stream_finish(struct mlo_s3_stream *stream, struct mlo_error *err);
/* One that did not get its last byte makes no object. NULL is fine. */
void mlo_s3_stream_free(struct mlo_s3_stream *stream);
/* Whether the server refuses a body that is not that of its signature, as S3 is to: asked once, with a small
 * object under `key`, which is not there afterwards. Not for whatever reason is false, too; a failure that
 * may pass is one. */
MLO_MUST_USE enum mlo_status mlo_s3_checks_digests(struct mlo_s3 *s3, const char *key, bool *checks,
                                                   struct mlo_error *err);
/* The same for addresses to write by (mlo_s3_grant with a digest): whether the server takes these bytes,
 * refuses others, and refuses a header that nobody signed, which names another object to be copied in their
 * place. Of both keys nothing is left. A failure says nothing of it. */
MLO_MUST_USE enum mlo_status mlo_s3_checks_presigned(struct mlo_s3 *s3, const char *key,
                                                     const char *other_key, bool *checks,
                                                     struct mlo_error *err);

/* Multipart. Parts are numbered 1 … MLO_S3_PARTS_MAX. */
struct mlo_s3_part {
    int number;
    uint64_t size_bytes;
    char etag[MLO_S3_ETAG_SIZE];
};
/* *upload is yours (free). */
MLO_MUST_USE enum mlo_status mlo_s3_multipart_create(struct mlo_s3 *s3, const char *key, char **upload,
                                                     struct mlo_error *err);
/* Fills *part. MLO_ENOTFOUND when the upload was ended. */
MLO_MUST_USE enum mlo_status mlo_s3_multipart_put(struct mlo_s3 *s3, const char *key, const char *upload,
                                                  int number, const void *bytes, size_t size,
                                                  struct mlo_s3_part *part, struct mlo_error *err);
/* Makes the object of the parts, which are sorted by number; then asks whether it is what it should be: size,
 * and the ETag that follows from the parts' (MLO_EDIGEST). What an earlier attempt has done counts. Who asks
 * for it again by another call looks for the object first. *refused (may be NULL), after a failure: the
 * server has said no. Else it may still do it, or have done it, and the upload must not be aborted (as
 * mlo_s3_multipart_look says). */
MLO_MUST_USE enum mlo_status mlo_s3_multipart_complete(struct mlo_s3 *s3, const char *key, const char *upload,
                                                       const struct mlo_s3_part *parts, size_t count,
                                                       bool *refused, struct mlo_error *err);
/* An ended one is fine. */
MLO_MUST_USE enum mlo_status mlo_s3_multipart_abort(struct mlo_s3 *s3, const char *key, const char *upload,
                                                    struct mlo_error *err);
/* The parts that are there, by number. *parts is yours (free). MLO_ENOTFOUND when the upload was ended. */
MLO_MUST_USE enum mlo_status mlo_s3_multipart_parts(struct mlo_s3 *s3, const char *key, const char *upload,
                                                    struct mlo_s3_part **parts, size_t *count,
                                                    struct mlo_error *err);
/* What an upload that nobody completed has: when its newest part came ("": none has), and whether the object
 * under its key may be made of these parts. A server that was killed while completing leaves both: who aborts
 * such an upload takes the object's bytes away (Ceph 16; its tracker 68982 names 17.2.8). MLO_ENOTFOUND when
 * it was ended. */
MLO_MUST_USE enum mlo_status mlo_s3_multipart_look(struct mlo_s3 *s3, const char *key, const char *upload,
                                                   bool *made, char newest[MLO_S3_MODIFIED_SIZE],
                                                   struct mlo_error *err);
/* A copy on the server, in one request or in parts. `object` is what mlo_s3_head said of the source: a source
 * that has changed since is MLO_EPRECONDITION on Amazon (Ceph 16 does not look; of Swift it is asked before
 * and after). MLO_EUNSUPPORTED: it copies no such object (Ceph 16: none that it has encrypted). */
MLO_MUST_USE enum mlo_status mlo_s3_copy(struct mlo_s3 *s3, const char *from,
                                         const struct mlo_s3_object *object, const char *to,
                                         struct mlo_error *err);

struct mlo_s3_entry {
    const char *key;      /* borrowed for the call */
    const char *upload;   /* of mlo_s3_list_uploads; else NULL */
    const char *modified; /* ISO 8601; of an upload: when it was begun */
    uint64_t size_bytes;
};
/* A failure ends the walk and is returned. */
typedef enum mlo_status mlo_s3_entry_fn(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err);
/* Every object, or every multipart upload that goes on, whose key starts with the prefix, in order of keys.
 */
MLO_MUST_USE enum mlo_status mlo_s3_list(struct mlo_s3 *s3, const char *prefix, mlo_s3_entry_fn *fn,
                                         void *arg, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_s3_list_uploads(struct mlo_s3 *s3, const char *prefix, mlo_s3_entry_fn *fn,
                                                 void *arg, struct mlo_error *err);
/* One list of one name, tried once and within budget_ms: whether the bucket answers. */
MLO_MUST_USE enum mlo_status mlo_s3_ping(struct mlo_s3 *s3, const char *prefix, uint32_t budget_ms,
                                         struct mlo_error *err);

/* What a presigned address is good for: GET of one object; PUT of one part of an upload; or PUT of one object
 * that the server makes of bytes with a digest, or not at all (where mlo_s3_checks_presigned says so). */
struct mlo_s3_grant {
    const char *key;
    const char *upload; /* a part of it is written, `number` */
    int number;
    const char *md5;                 /* of the part, in base64: checked; or NULL */
    const struct mlo_digest *digest; /* the object is written: the SHA-256 that its bytes have */
    uint64_t size_bytes;             /* of what is written: it must have it; 0: any */
    /* For reading, or NULL: what S3 answers in these headers. */
    const char *content_type, *disposition, *cache_control;
    uint32_t expires_s; /* 1 … MLO_S3_EXPIRY_MAX_S */
};
enum { MLO_S3_GRANT_HEADERS = 4 };
struct mlo_s3_headers {
    struct mlo_s3_pair items[MLO_S3_GRANT_HEADERS];
    size_t count;
    char hex[MLO_DIGEST_TEXT_SIZE]; /* within */
};
/* The headers that must come with the address, beside Content-Length, as they are signed. Their texts are
 * borrowed from all three. */
void mlo_s3_grant_headers(const struct mlo_s3 *s3, const struct mlo_s3_grant *grant,
                          struct mlo_s3_headers *out);
/* An address that anyone may use for so long, without keys, for exactly that. *url is yours (free).
 * MLO_EUNSUPPORTED with a customer's encryption key, which would have to be given away. */
MLO_MUST_USE enum mlo_status mlo_s3_presign_url(struct mlo_s3 *s3, const struct mlo_s3_grant *grant,
                                                char **url, struct mlo_error *err);

#endif
