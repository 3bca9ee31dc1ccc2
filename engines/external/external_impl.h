/* Private to engines/external: a child process that runs another runtime, and the messages that it is sent.
 * docs/external-engines.md describes the protocol. */
#ifndef MLO_ENGINES_EXTERNAL_IMPL_H
#define MLO_ENGINES_EXTERNAL_IMPL_H

#include <sys/types.h>

#include "base/embed.h"
#include "engines/engines_impl.h"

enum { EXT_PROTOCOL = 1 };

/* A runtime: how its adapter is started. */
struct ext_runtime {
    const char *name;   /* of the engine: "ort" */
    const char *script; /* embedded Python adapter; NULL: the program that MLOPT_ADAPTER names */
};

/* One adapter process. One caller at a time. */
struct ext_child {
    const struct ext_runtime *runtime;
    pid_t pid;
    int fd;        /* its stdin and stdout; -1 once the conversation has broken down */
    int stderr_fd; /* a memory file, to quote from when it dies; -1: none */
    char version[128];
};

struct ext_bytes {
    const void *data;
    size_t size;
};

struct ext_reply {
    json_t *header;
    char *payload;
    size_t payload_bytes;
};
void ext_reply_clear(struct ext_reply *reply);

/* Starts the adapter and says hello. MLO_EUNAVAILABLE when the runtime is not there. *out is yours
 * (ext_child_stop). */
MLO_MUST_USE enum mlo_status ext_child_start(const struct ext_runtime *runtime, struct ext_child **out,
                                             struct mlo_error *err);
/* Sends {"verb": verb, …request} with the parts as payload and waits for the reply. `request` is taken and
 * may be NULL. What the adapter reports as an error is returned as one; a conversation that breaks down or
 * takes longer than the time-out ends the process. */
MLO_MUST_USE enum mlo_status ext_child_ask(struct ext_child *child, const char *verb, json_t *request,
                                           const struct ext_bytes *parts, size_t part_count,
                                           uint64_t timeout_ms, struct ext_reply *reply,
                                           struct mlo_error *err);
void ext_child_stop(struct ext_child *child); /* NULL is fine */

/* Messages (wire.c): a 4-byte little-endian length, that many bytes of JSON, then as many bytes as the JSON's
 * "payload_bytes" says. MLO_ETIMEOUT at the deadline (mlo_clock_ns), MLO_EIO when the other side is gone. */
MLO_MUST_USE enum mlo_status ext_send(int fd, const json_t *header, const struct ext_bytes *parts,
                                      size_t part_count, uint64_t deadline_ns, struct mlo_error *err);
MLO_MUST_USE enum mlo_status ext_receive(int fd, uint64_t deadline_ns, struct ext_reply *reply,
                                         struct mlo_error *err);

/* The adapters' Python files, as part of the program. */
extern const struct mlo_embedded_file ext_adapter_files[];
extern const size_t ext_adapter_files_count;

#endif
