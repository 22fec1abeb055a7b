/* sup_pressure.h - how busy the server is, in the numbers a load balancer asks for.
 *
 * The endpoint picker of the Gateway API Inference Extension reads, from /metrics, requests
 * waiting, requests running and the KV cache in use of a whole server. They are made from
 * the fleet's numbers at each scrape: per model under our names, and for the whole server
 * also under the names vLLM gives them, which that picker reads when nothing else is
 * configured. Tests: tests/supervisor/test_sup_pressure.c
 */
#ifndef INFERD_SUP_PRESSURE_H
#define INFERD_SUP_PRESSURE_H

struct sup_front;

/* Brings those gauges up to date. */
void sup_pressure_show(struct sup_front *front);

#endif
