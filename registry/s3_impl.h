/* Private to registry/s3_*.c: the client's state, one request, XML answers. */
#ifndef MLO_REGISTRY_S3_IMPL_H
#define MLO_REGISTRY_S3_IMPL_H

#include <curl/curl.h>
#include <pthread.h>

#include "registry/s3_client.h"
#include "registry/s3_sign.h"

enum {
    MLO_S3_IDLE_MAX = 16,          /* connections kept */
    MLO_S3_ANSWER_MAX = 8 << 20,   /* of XML: 1,000 keys of 1,024 bytes, each escaped, with room */
    MLO_S3_SLOW_STALL_MS = 600000, /* for what the server works on in silence: copies, completing */
};

struct mlo_s3 {
    char *bucket, *base, *host, *path; /* "https://host:port", Host header, "" or "/bucket" */
    char *region, *ca_file;
    char *access_key, *secret_key, *session_token;
    char *encryption, *kms_key;
    char *customer_key, *customer_md5; /* base64 */
    bool unsigned_parts;               /* TLS alone finds what is changed on the way */
    uint32_t connect_ms, stall_ms, attempts;
    pthread_mutex_t lock; /* of idle */
    CURL *idle[MLO_S3_IDLE_MAX];
    size_t idle_count;
};

/* Which encryption headers a request takes. */
enum mlo_s3_crypt {
    MLO_S3_CRYPT_NONE,
    MLO_S3_CRYPT_WRITE, /* makes an object */
    MLO_S3_CRYPT_USE,   /* touches bytes of one: a customer's key only */
    MLO_S3_CRYPT_COPY,  /* both, and the source's */
};

struct mlo_s3_call {
    const char *method, *key; /* NULL: the bucket */
    struct mlo_s3_pair query[8];
    size_t query_count;
    struct mlo_s3_pair headers[8];
    size_t header_count;
    enum mlo_s3_crypt crypt;
    const void *body;
    size_t body_size;
    const struct mlo_digest *digest; /* of the body, or NULL */
    const char *address; /* presigned: it goes there, with these headers and no signature; or NULL */
    bool unsigned_body;
    bool asks_first;   /* "Expect: 100-continue": what the server refuses at once costs no byte of the body */
    uint32_t stall_ms; /* 0: the client's */
    uint32_t budget_ms;   /* for the whole of an attempt; 0: as long as bytes move */
    mlo_s3_sink_fn *sink; /* for the body of a good answer; NULL: it goes to `answer` */
    void *sink_arg;
    bool (*begin)(struct mlo_s3_call *call); /* before the sink's first byte of an answer; false: end it */
    void *begin_arg;

    /* The answer. */
    long http; /* 0: none came */
    struct mlo_s3_object object;
    uint64_t range_first, range_total; /* of Content-Range */
    bool has_range, encrypted;         /* encrypted: the ETag is no MD5 */
    bool has_length;
    char code[64], message[160], request_id[80], bucket_region[40];
    struct mlo_buf answer;
    /* Within. */
    size_t sent;
    struct mlo_error sink_error;
    bool too_big, headers_whole;
};

void mlo_s3_call_clear(struct mlo_s3_call *call);
static inline void mlo_s3_call_query(struct mlo_s3_call *call, const char *name, const char *value)
{
    call->query[call->query_count++] = (struct mlo_s3_pair){name, value};
}
static inline void mlo_s3_call_header(struct mlo_s3_call *call, const char *name, const char *value)
{
    call->headers[call->header_count++] = (struct mlo_s3_pair){name, value};
}

/* A request as it goes out. */
struct mlo_s3_message {
    struct mlo_s3_pair headers[24];
    size_t header_count;
    struct curl_slist *list;
    struct mlo_buf url, path, authorization, line;
    char time[MLO_S3_TIME_SIZE], hash[MLO_DIGEST_TEXT_SIZE];
};

/* One try of a call. */
struct mlo_s3_transfer {
    struct mlo_s3 *s3;
    struct mlo_s3_call *call;
    CURL *curl;
    curl_socket_t kept; /* of the connection that the handle has from its last request */
    bool begun;
    struct mlo_s3_message message;
    char detail[CURL_ERROR_SIZE];
};
/* Makes the handle ready, signed at this time; result() says how its end is to be taken (*retry: a failure
 * that may pass); end() whenever begin() was called. fresh: on a new connection. */
enum mlo_status mlo_s3_transfer_begin(struct mlo_s3_transfer *t, struct mlo_s3 *s3, struct mlo_s3_call *call,
                                      bool fresh, struct mlo_error *err);
enum mlo_status mlo_s3_transfer_result(struct mlo_s3_transfer *t, CURLcode code, bool *retry,
                                       struct mlo_error *err);
void mlo_s3_transfer_end(struct mlo_s3_transfer *t);
/* One try. *retry: the failure may pass. */
enum mlo_status mlo_s3_attempt(struct mlo_s3 *s3, struct mlo_s3_call *call, bool fresh, bool *retry,
                               struct mlo_error *err);
/* Tries until it succeeds, cannot, or the attempts are used up. */
enum mlo_status mlo_s3_perform(struct mlo_s3 *s3, struct mlo_s3_call *call, struct mlo_error *err);
/* The same of what S3 takes its time for, and may answer with an error in the body of a good answer: the text
 * of the answer's element `name`. */
enum mlo_status mlo_s3_perform_slowly(struct mlo_s3 *s3, struct mlo_s3_call *call, const char *name,
                                      char *text, size_t size, struct mlo_error *err);
/* Sleeps before attempt `n` (1: the second), with full jitter. */
void mlo_s3_backoff(uint32_t n);

/* s3_error.c: the failure of an answer (http >= 300, or an error in the body of a good one). */
enum mlo_status mlo_s3_refused(const struct mlo_s3 *s3, struct mlo_s3_call *call, bool *retry,
                               struct mlo_error *err);
enum mlo_status mlo_s3_curl_failed(const struct mlo_s3 *s3, const struct mlo_s3_call *call, CURLcode code,
                                   const char *detail, bool *retry, struct mlo_error *err);

/* s3_keys.c */
enum mlo_status mlo_s3_read_keys(struct mlo_s3 *s3, const char *file, const char *profile,
                                 struct mlo_error *err);
enum mlo_status mlo_s3_read_customer_key(struct mlo_s3 *s3, const char *path, struct mlo_error *err);

/* s3_xml.c: every element without children ends with its name, its parent's name and its text; every other
 * one with text NULL. A failure ends the parse. Not well-formed, a document type, deep nesting, long texts:
 * MLO_EFORMAT. */
typedef enum mlo_status mlo_s3_xml_fn(void *arg, const char *parent, const char *name, const char *text,
                                      struct mlo_error *err);
enum mlo_status mlo_s3_xml(const struct mlo_buf *bytes, mlo_s3_xml_fn *fn, void *arg, struct mlo_error *err);
/* Appends text for an XML body. */
void mlo_s3_xml_escape(struct mlo_buf *out, const char *text);

#endif
