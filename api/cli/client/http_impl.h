/* Private to http.c, download.c and direct.c of api/cli/client: one transfer by libcurl. */
#ifndef MLO_CLI_HTTP_IMPL_H
#define MLO_CLI_HTTP_IMPL_H

#include <curl/curl.h>

#include "api/cli/client/client.h"

struct mlo_client {
    struct mlo_cli *cli;
    CURL *curl;
    struct mlo_config config;
    struct mlo_buf auth; /* the header line */
    char error[CURL_ERROR_SIZE];
    const char *ca_file; /* --ca-file or the configuration's; NULL: the system's certificates alone */
    bool stays;          /* nobody is followed to another server any more: it did not work */
};

/* What one transfer collects. */
struct mlo_transfer {
    struct mlo_client *client;
    struct mlo_response *response;
    struct mlo_buf body; /* of JSON answers and of errors */
    bool too_big;
    int out_fd; /* >= 0: a successful body goes there, hashed */
    struct mlo_hasher *hasher;
    uint64_t had; /* bytes of the file that were there before: an answer 206 goes on behind them */
    struct mlo_digest wanted; /* of all of it, where it keeps */
    bool keeps;               /* what came stays when the connection breaks */
    uint64_t last_ns;         /* when bytes of it came last */
    int write_errno;
    struct mlo_cli_progress *progress;
    const struct mlo_client_part *part; /* of the file that is sent; NULL: no file */
    bool follows;                       /* 307 is an answer: `location` says where the bytes are */
    bool elsewhere;                     /* what comes is not from our server: its headers are nobody's */
    struct mlo_buf location;
    uint64_t began_ns;
};

/* How a connection to `url` is made: proxies, and whose certificates are trusted. */
void mlo_client_reach(const struct mlo_client *client, CURL *curl, const char *url);
/* From the first byte on: what was written and hashed is forgotten (download.c). */
MLO_MUST_USE enum mlo_status mlo_transfer_start_anew(struct mlo_transfer *t, struct mlo_error *err);
/* Readies the client's handle for a request; url and headers are borrowed until it was performed. */
void mlo_transfer_set_up(struct mlo_transfer *t, const char *method, const char *url,
                         struct curl_slist *headers);
/* Performs the request; a body of JSON is parsed, an answer of 400 and above becomes an error. */
MLO_MUST_USE enum mlo_status mlo_transfer_perform(struct mlo_transfer *t, struct mlo_error *err);
/* What is still to be sent of a part, and curl's function that reads it. */
struct mlo_sending {
    int fd;
    uint64_t at, left;
};
size_t mlo_sending_read(char *out, size_t one, size_t n, void *arg);
/* May bytes come from, or go to, the address that our server gives? Over TLS where the server is; else `why`
 * says why not. `host` gets its name, which may be shown: the address itself may not, whoever has it could
 * use it. */
bool mlo_client_may_go(const struct mlo_client *client, const char *url, char host[128], char why[256]);
/* Adds a line ("" and NULL: none). False: out of memory. */
bool mlo_add_header(struct curl_slist **list, const char *line);
/* Cut to what fits. */
void mlo_copy_text(char *out, size_t size, const char *text, size_t n);

#endif
