/* sup_secret_limits.h - how long a secret and its origin may be, for all who keep, carry or send
 * one. */
#ifndef INFERD_SUP_SECRET_LIMITS_H
#define INFERD_SUP_SECRET_LIMITS_H

#define SUP_SECRET_BYTES 8192u /* of one header value, without a NUL */
#define SUP_ORIGIN_MAX 300u    /* of a buffer for scheme://host:port, with its NUL */

#endif
