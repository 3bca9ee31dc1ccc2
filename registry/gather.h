/* Reads of many threads in one round trip. Who comes while an answer is awaited waits for the next one, and
 * shares it with all who came meanwhile: alone a read costs what it costs, and under load one statement
 * answers as many as there are. Nothing is kept: no answer is older than its question. Safe from several
 * threads. */
#ifndef MLO_REGISTRY_GATHER_H
#define MLO_REGISTRY_GATHER_H

#include "registry/db.h"

enum { MLO_GATHER_VALUES = 3 };

struct mlo_gather;
struct mlo_gather_answer;

/* A question: a value for each parameter of a statement whose parameters are arrays of text, an element a
 * question. Its rows begin with the number of their question, from 1; there is one for each at most. Values
 * are checked before: one that PostgreSQL refuses fails those of others with it. */
struct mlo_gather_ask {
    const struct mlo_sql *sql;
    const char *values[MLO_GATHER_VALUES]; /* borrowed until mlo_gather_read returned; NULL: SQL NULL */
    struct mlo_rows rows;                  /* borrowed from `answer`, with rows of others: never cleared */
    int row;                               /* its own one; -1: there is none */
    struct mlo_gather_answer *answer;
};

/* The pool is borrowed, and outlives it. *out is yours (mlo_gather_free). */
MLO_MUST_USE enum mlo_status mlo_gather_new(struct mlo_db *db, struct mlo_gather **out,
                                            struct mlo_error *err);
void mlo_gather_free(struct mlo_gather *gather); /* NULL is allowed; nobody reads any more */

/* Asks `count` questions at once, in one transaction, and fills `rows` and `row` of each. The failure is that
 * of the pool or of a statement, for all who asked with them; where the pool has no connection, or PostgreSQL
 * does not answer (MLO_EUNAVAILABLE), also for all who wait meanwhile. A connection that ends under it is
 * replaced once. Holds one only where it is this thread that asks for all. Statements only read. */
MLO_MUST_USE enum mlo_status mlo_gather_read(struct mlo_gather *gather, struct mlo_gather_ask *asks,
                                             size_t count, struct mlo_error *err);
/* Appends the row as mlo_rows_json shows it, from the column `first` on, as text: what is json already is not
 * read. */
void mlo_rows_json_text(const struct mlo_rows *rows, int row, int first, struct mlo_buf *out);
/* Gives the answers back; those that have none are left alone. */
void mlo_gather_clear(struct mlo_gather_ask *asks, size_t count);

#endif
