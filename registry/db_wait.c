/* Waiting for PostgreSQL's answers, but not forever. A connection can be half open: the other side, or what
 * is between, is gone without a word, or takes what is sent and says nothing. TCP's own probes (db.c) find
 * out about a dead host; a hung one, or a proxy, answers them. So an answer has its time, which is longer
 * than the one after which the server itself gives a statement up. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "registry/db_impl.h"

static _Thread_local uint32_t thread_patience_ms;

void mlo_db_patience(uint32_t ms)
{
    thread_patience_ms = ms;
}

void mlo_db_unhurried(struct mlo_db_conn *conn, bool unhurried)
{
    conn->unhurried = unhurried;
}

static uint32_t patience_ms(const struct mlo_db_conn *conn)
{
    if (conn->unhurried)
        return 0;
    return thread_patience_ms ? MLO_MIN(thread_patience_ms, conn->db->answer_ms) : conn->db->answer_ms;
}

/* libpq then finds the end of the stream, and says so in its own way. */
static void give_up(struct mlo_db_conn *conn)
{
    conn->silent = conn->broken = true;
    shutdown(PQsocket(conn->pg), SHUT_RDWR);
}

PGresult *mlo_db_answer(struct mlo_db_conn *conn)
{
    uint32_t ms = patience_ms(conn);
    uint64_t until = mlo_clock_ns() + ms * 1000000ull;
    while (ms && !conn->silent && PQisBusy(conn->pg)) {
        uint64_t now = mlo_clock_ns();
        struct pollfd wait = {PQsocket(conn->pg), POLLIN, 0};
        int ready = now < until ? poll(&wait, 1, (int)((until - now) / 1000000 + 1)) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0)
            give_up(conn);
        else if (ready < 0 || !PQconsumeInput(conn->pg))
            break;
    }
    return PQgetResult(conn->pg);
}

PGresult *mlo_db_answers(struct mlo_db_conn *conn, bool sent)
{
    PGresult *last = NULL, *result;
    while (sent && (result = mlo_db_answer(conn))) { /* as PQexec: the last one counts */
        PQclear(last);
        last = result;
        if (PQstatus(conn->pg) == CONNECTION_BAD)
            break;
    }
    return last;
}
