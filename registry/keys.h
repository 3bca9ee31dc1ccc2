/* The keys that sign ledgers: public halves in the database, published; private halves files of the servers
 * (mode 0600). Rotation retires a key and has it vouch for the next one; what it signed stays valid.
 * Revocation says from when on a key's signatures are worth nothing. */
#ifndef MLO_REGISTRY_KEYS_H
#define MLO_REGISTRY_KEYS_H

#include "registry/actor.h"

/* Name spaces of signatures: of a key by the one before, of a backup's manifest. */
#define MLO_KEY_ENDORSED_AS "mlopt-key"
#define MLO_BACKUP_SIGNED_AS "mlopt-backup"

/* Array, oldest first: {fingerprint, key ("ssh-ed25519 AAAA…"), comment, valid_from, retired_at,
 * revoked_from, endorser (a fingerprint), endorsement (an armored signature of the line `key` + newline),
 * created_by}. Times are as in "2026-01-31T12:34:56Z"; what is not there is null. */
MLO_MUST_USE enum mlo_status mlo_keys_list(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err);
/* The same as the text of an allowed_signers file (ssh-keygen(1)): for gpg.ssh.allowedSignersFile. */
void mlo_keys_allowed_signers(const json_t *keys, struct mlo_buf *out);
/* Whether the key could sign at that time (UTC seconds since 1970). */
bool mlo_keys_valid_at(const json_t *key, int64_t time_s);

/* Makes `key` the one that signs. `before` signs it, and is retired; NULL: there must be none that signs now
 * (MLO_ECONFLICT otherwise, naming it). Needs an admin; written to the installation's audit log. Takes the
 * key that is there already without a word. */
MLO_MUST_USE enum mlo_status mlo_keys_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                          const struct mlo_sign_key *key, const char *comment,
                                          const struct mlo_sign_key *before, struct mlo_error *err);
/* From then on ("2026-01-31T12:34:56Z"; NULL: now) signatures of this key count for nothing; it signs no
 * more. A revocation can be made earlier, not later: MLO_ECONFLICT. Needs an admin. */
MLO_MUST_USE enum mlo_status mlo_keys_revoke(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                             const char *fingerprint, const char *from,
                                             struct mlo_error *err);

/* In a transaction: keeps the key from being retired until its end, and gives the time since when it is
 * valid. MLO_ECONFLICT when it is retired or revoked, MLO_ENOTFOUND when it is unknown. */
MLO_MUST_USE enum mlo_status mlo_keys_hold(struct mlo_db_conn *conn, const struct mlo_public_key *key,
                                           int64_t *valid_from_s, struct mlo_error *err);

#endif
