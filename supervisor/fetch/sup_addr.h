/* sup_addr.h - which addresses belong to everybody's internet and which to somebody's own network.
 *
 * What a stranger names must not lead to this machine, its neighbours or the cloud's metadata
 * service. Always true: an address of a family that is not known here is not public; an IPv6
 * address that carries an IPv4 one is as public as that one.
 * Tests: tests/supervisor/test_sup_addr.c
 */
#ifndef INFERD_SUP_ADDR_H
#define INFERD_SUP_ADDR_H

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

bool sup_addr_public(const struct sockaddr *a, size_t n_bytes);
/* The address alone, for messages: "10.0.0.1", "fe80::1"; "" of another family. */
#define SUP_ADDR_TEXT 64
void sup_addr_text(const struct sockaddr *a, size_t n_bytes, char out[SUP_ADDR_TEXT]);

#endif
