/* Sending a file: whole, or in pieces that need not be sent twice. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/client/direct.h"

/* A larger file goes in pieces: what a broken connection costs is one of them at the most. */
#define PIECE_BYTES ((uint64_t)32 << 20)
#define TRIES 6 /* without a byte of progress */
/* Up to here a file goes into a bucket as one request, where that is offered: nothing is read back then.
 * Larger ones go in parts, as a broken connection costs all of a request. */
#define WHOLE_BYTES ((uint64_t)256 << 20)

struct sender {
    struct mlo_client *client;
    const char *project;
    struct mlo_digest digest;
    struct mlo_client_part part;
    struct mlo_cli_progress progress;
    char *note;      /* the file that remembers the session */
    char id[64];     /* of the session; "" when there is none */
    bool there;      /* the project has the bytes: nothing is left to do */
    long http;       /* of the last answer about it */
    uint64_t offset; /* where it stands */
    json_t *direct;  /* parts that go to the bucket, as the server says; NULL: pieces */
};

/* --- what is remembered between processes -----------------------------------------------------------------
 */

static enum mlo_status find_note(struct sender *s, const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_buf key = MLO_BUF_INIT;
    struct mlo_digest name;
    char text[MLO_DIGEST_TEXT_SIZE], path[96];
    struct mlo_error ignored = {0};
    mlo_buf_printf(&key, "%s %s %s", mlo_client_url(s->client), s->project, mlo_digest_text(digest, text));
    if (!mlo_buf_ok(&key)) {
        mlo_buf_clear(&key);
        return mlo_error_nomem(err);
    }
    mlo_digest_of(mlo_buf_str(&key), key.len, &name);
    mlo_buf_clear(&key);
    snprintf(path, sizeof path, "uploads/%.32s", mlo_digest_hex(&name, text));
    if (mlo_config_state_path(path, &s->note, &ignored) != MLO_OK)
        s->note = NULL; /* no home: this process alone remembers */
    return MLO_OK;
}

static void read_note(const struct sender *s, char id[64])
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_error ignored = {0};
    id[0] = '\0';
    if (s->note && mlo_fs_read(s->note, sizeof s->id - 1, &text, &ignored) == MLO_OK)
        snprintf(id, sizeof s->id, "%s", mlo_buf_str(&text));
    mlo_buf_clear(&text);
}

static void write_note(const struct sender *s)
{
    struct mlo_error ignored = {0};
    if (s->note && mlo_fs_write_atomic(s->note, s->id, strlen(s->id), &ignored) != MLO_OK)
        unlink(s->note);
}

/* That of our session: another push of the same file may have begun one by now. */
static void drop_note(const struct sender *s)
{
    char id[sizeof s->id];
    read_note(s, id);
    if (id[0] && strcmp(id, s->id) == 0)
        unlink(s->note);
}

/* --- the session ------------------------------------------------------------------------------------------
 */

static void session_path(const struct sender *s, struct mlo_buf *path)
{
    mlo_client_path(path, "/v1/projects/%s/uploads/%s", s->project, s->id);
}

static enum mlo_status ask(struct sender *s, const char *method, const char *query, const json_t *body,
                           struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response response = {0};
    if (s->id[0])
        session_path(s, &path);
    else
        mlo_client_path(&path, "/v1/projects/%s/uploads", s->project);
    mlo_buf_puts(&path, query);
    enum mlo_status status =
        mlo_client_call(s->client, method, mlo_buf_str(&path), NULL, body, &response, err);
    if (status == MLO_OK && response.json) {
        if (mlo_json_str(response.json, "id", NULL))
            snprintf(s->id, sizeof s->id, "%s", mlo_json_str(response.json, "id", ""));
        s->offset = (uint64_t)mlo_json_i64(response.json, "offset", 0);
        s->http = response.http;
        if (mlo_json_str(response.json, "id", NULL)) {
            json_decref(s->direct);
            s->direct = json_incref(json_object_get(response.json, "direct"));
        }
    }
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status begin_session(struct sender *s, bool direct, struct mlo_error *err)
{
    char digest[MLO_DIGEST_TEXT_SIZE];
    bool whole = direct && s->part.file_size <= WHOLE_BYTES;
    json_t *body = json_pack("{s:b, s:I, s:s*}", "direct", direct, "size", (json_int_t)s->part.file_size,
                             "digest", whole ? mlo_digest_text(&s->digest, digest) : NULL);
    drop_note(s);
    s->id[0] = '\0';
    s->offset = 0;
    enum mlo_status status = body ? ask(s, "POST", "", body, err) : mlo_error_nomem(err);
    json_decref(body);
    if (status == MLO_OK)
        write_note(s);
    return status;
}

/* Of a session that is gone: lost or dropped, or finished, by our request whose answer was lost or by another
 * push of the same file. */
static enum mlo_status look_whether_there(struct sender *s, struct mlo_error *err)
{
    return s->id[0] ? mlo_client_has_blob(s->client, s->project, &s->digest, &s->there, err) : MLO_OK;
}

/* Goes on with the session that was remembered, or begins one where the bytes are not there. */
static enum mlo_status open_session(struct sender *s, struct mlo_error *err)
{
    struct mlo_error own = {0};
    read_note(s, s->id);
    enum mlo_status status = s->id[0] ? ask(s, "GET", "", NULL, &own) : MLO_ENOTFOUND;
    if (status == MLO_ENOTFOUND) {
        enum mlo_status looked = look_whether_there(s, err);
        if (looked != MLO_OK || s->there)
            return looked;
    }
    uint64_t size = status == MLO_OK && s->direct ? (uint64_t)mlo_json_i64(s->direct, "size", 0) : 0;
    if (status == MLO_ENOTFOUND || (status == MLO_OK && s->offset > s->part.file_size) ||
        (size && size != s->part.file_size))
        return begin_session(s, true, err);
    if (status != MLO_OK && err)
        *err = own;
    return status;
}

static enum mlo_status send_piece(struct sender *s, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response response = {0};
    s->part.first = s->offset;
    s->part.size = MLO_MIN(PIECE_BYTES, s->part.file_size - s->offset);
    session_path(s, &path);
    enum mlo_status status =
        mlo_client_send_part(s->client, "PATCH", mlo_buf_str(&path), &s->part, &s->progress, &response, err);
    if (status == MLO_OK)
        s->offset = (uint64_t)mlo_json_i64(response.json, "offset", (int64_t)(s->offset + s->part.size));
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    return status;
}

/* Whether waiting and asking where it stands can help. */
static bool passing(enum mlo_status status)
{
    return mlo_status_info(status)->retry || status == MLO_ECONFLICT || status == MLO_ERANGE;
}

static enum mlo_status send_pieces(struct sender *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int tries = 0;
    while (status == MLO_OK && s->offset < s->part.file_size) {
        uint64_t before = s->offset;
        struct mlo_error own = {0}, asked = {0};
        status = send_piece(s, &own);
        while (passing(status) && ++tries < TRIES) {
            mlo_clock_sleep_ms(200u << tries);
            enum mlo_status stands = ask(s, "GET", "", NULL, &asked);
            if (stands == MLO_OK || stands == MLO_ENOTFOUND) {
                status = stands;
                own = asked;
            }
        }
        if (s->offset > before)
            tries = 0;
        if (status != MLO_OK) {
            if (err)
                *err = own;
            if (passing(status))
                mlo_error_hint(err, "run the command again: it goes on after %llu of %llu bytes",
                               (unsigned long long)s->offset, (unsigned long long)s->part.file_size);
        }
    }
    return status;
}

/* The end: the bytes become the blob. Of parts in the bucket the server reads a while, and is asked again; so
 * it is when the answer was lost (where it finished, the session is gone then). */
static enum mlo_status finish_once(struct sender *s, const char *digest, struct mlo_error *err)
{
    char query[96], done[32], all[32], text[96];
    snprintf(query, sizeof query, "?digest=%s", digest);
    for (int tries = 0;;) {
        struct mlo_error own = {0};
        uint64_t before = s->offset;
        enum mlo_status status = ask(s, "PUT", query, NULL, &own);
        if (status == MLO_OK && (!s->direct || s->http != 202))
            return MLO_OK;
        if (status == MLO_OK) {
            snprintf(text, sizeof text, "%s of %s verified", mlo_str_size(s->offset, done),
                     mlo_str_size(s->part.file_size, all));
            mlo_cli_progress(&s->progress, (double)s->offset / (double)s->part.file_size, text);
            tries = s->offset > before ? 0 : tries;
        } else if (!passing(status) || ++tries >= TRIES) {
            if (err)
                *err = own;
            return status;
        } else {
            mlo_clock_sleep_ms(200u << tries);
        }
    }
}

/* Nothing could be put into the bucket, or nothing can be made of what was: the file goes through the server
 * after all, by a session of its own. */
static enum mlo_status send_indirectly(struct sender *s, const char *why, struct mlo_error *err)
{
    struct mlo_error ignored = {0};
    mlo_cli_note(mlo_client_cli(s->client), "%s; sending the file through the server", why);
    if (ask(s, "DELETE", "", NULL, &ignored) != MLO_OK)
        mlo_cli_note(mlo_client_cli(s->client), "upload %s is left behind; it expires by itself", s->id);
    json_decref(s->direct);
    s->direct = NULL;
    enum mlo_status status = begin_session(s, false, err);
    return status == MLO_OK ? send_pieces(s, err) : status;
}

/* Parts straight to the bucket. */
static enum mlo_status send_direct(struct sender *s, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_error own = {0}, asked = {0};
    bool some = false;
    enum mlo_status status = MLO_OK;
    session_path(s, &path);
    if (!mlo_buf_ok(&path))
        return mlo_error_nomem(err);
    for (int tries = 0;;) {
        status = mlo_client_send_parts(s->client, mlo_buf_str(&path), s->direct, s->part.fd, &s->progress,
                                       &some, &own);
        if (!passing(status) || !some || ++tries >= TRIES)
            break;
        mlo_clock_sleep_ms(200u << tries);
        if (ask(s, "GET", "", NULL, &asked) == MLO_ENOTFOUND) { /* else: what has arrived by now */
            status = MLO_ENOTFOUND;
            own = asked;
            break;
        }
    }
    mlo_buf_clear(&path);
    if (status == MLO_EUNSUPPORTED || (status == MLO_EUNAVAILABLE && !some))
        return send_indirectly(s, own.message, err);
    if (passing(status))
        mlo_error_hint(&own, "run the command again: it sends the parts that have not arrived");
    if (status != MLO_OK && err)
        *err = own;
    return status;
}

/* The server may find only now that direct uploads do not go with its store, or were switched off. */
static enum mlo_status finish(struct sender *s, const char *digest, struct mlo_error *err)
{
    struct mlo_error own = {0};
    enum mlo_status status = finish_once(s, digest, &own);
    if (status == MLO_EUNSUPPORTED && s->direct) {
        status = send_indirectly(s, own.message, err);
        return status == MLO_OK ? finish_once(s, digest, err) : status;
    }
    if (status != MLO_OK && err)
        *err = own;
    return status;
}

/* In the session that was remembered, or in a new one. */
static enum mlo_status send_in_session(struct sender *s, const char *digest, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(open_session(s, err));
    if (s->there)
        goto out;
    MLO_TRY(s->direct ? send_direct(s, err) : send_pieces(s, err));
    MLO_TRY(finish(s, digest, err));
out:
    return status;
}

/* Nothing can be added to it, though the server may still know it. */
static void forget_session(struct sender *s)
{
    struct mlo_error ignored = {0};
    enum mlo_status status = ask(s, "DELETE", "", NULL, &ignored);
    if (status != MLO_OK && status != MLO_ENOTFOUND)
        mlo_cli_note(mlo_client_cli(s->client), "upload %s is left behind; it expires by itself", s->id);
    drop_note(s);
    s->id[0] = '\0';
}

/* The session that was sent to is gone; *err says why, and then of what is done about it. */
static enum mlo_status go_on_without(struct sender *s, const char *digest, struct mlo_error *err)
{
    struct mlo_error gone = *err;
    enum mlo_status status = look_whether_there(s, err);
    if (status != MLO_OK || s->there)
        return status;
    mlo_cli_note(mlo_client_cli(s->client), "%s; beginning the upload again", gone.message);
    forget_session(s);
    return send_in_session(s, digest, err);
}

static enum mlo_status send_whole(struct sender *s, const char *digest, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response response = {0};
    s->part.size = s->part.file_size;
    mlo_client_path(&path, "/v1/projects/%s/blobs/%s", s->project, digest);
    enum mlo_status status;
    for (int tries = 1;; tries++) {
        status = mlo_client_send_part(s->client, "PUT", mlo_buf_str(&path), &s->part, &s->progress, &response,
                                      err);
        mlo_response_clear(&response);
        if (!mlo_status_info(status)->retry || tries == TRIES)
            break;
        mlo_clock_sleep_ms(200u << tries);
    }
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_send_file(struct mlo_client *client, const char *project, const char *file,
                                     const struct mlo_digest *digest, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct sender s = {.client = client, .project = project, .digest = *digest};
    struct mlo_error own = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    struct stat st;
    mlo_cli_progress_start(&s.progress, mlo_client_cli(client), mlo_fs_basename(file));
    s.part.fd = open(file, O_RDONLY | O_CLOEXEC);
    if (s.part.fd < 0 || fstat(s.part.fd, &st) != 0) {
        status = mlo_error_errno(err, errno, "cannot read %s", file);
        goto out;
    }
    s.part.file_size = (uint64_t)st.st_size;
    mlo_digest_text(digest, text);
    if (s.part.file_size <= PIECE_BYTES) {
        status = send_whole(&s, text, err);
        goto out;
    }
    MLO_TRY(find_note(&s, digest, err));
    status = send_in_session(&s, text, &own);
    if (status == MLO_ENOTFOUND && s.id[0])
        status = go_on_without(&s, text, &own);
    if (status != MLO_OK && err)
        *err = own;
    if (status == MLO_EDIGEST) { /* what lies there is of no use */
        struct mlo_error dropping = {0};
        if (ask(&s, "DELETE", "", NULL, &dropping) != MLO_OK)
            mlo_error_hint(err, "upload %s could not be dropped; it expires by itself", s.id);
    }
    if (status == MLO_OK || status == MLO_EDIGEST || status == MLO_ENOTFOUND)
        drop_note(&s);
out:
    mlo_cli_progress_end(&s.progress);
    if (s.part.fd >= 0)
        close(s.part.fd);
    json_decref(s.direct);
    free(s.note);
    return status;
}
