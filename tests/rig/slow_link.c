/* A link between two network namespaces with a delay, a rate, a queue and losses.

   usage: slow_link NAME NETNS_A NETNS_B DELAY_US RATE_BYTES_S QUEUE_BYTES LOSS_PPM

   Makes a TUN device NAME in each of the two namespaces (named by their /run/netns files) and
   carries packets between them. Each direction is a line of its own: a packet waits until those
   before it are sent, is dropped where more than QUEUE_BYTES would wait, takes its size by
   RATE_BYTES_S to be sent and DELAY_US to arrive; of a million, LOSS_PPM vanish. Prints "ready".
   The devices go away with this process. Addresses are the caller's to set. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST_PACKET = 65536, BATCH = 64 };

struct packet {
    struct packet *next;
    int64_t due_ns;
    ssize_t size;
    unsigned char bytes[];
};

struct line {
    int from, to;
    int64_t free_ns; /* when all that was taken so far is sent */
    unsigned seed;
    struct packet *first, *last; /* on their way, by arrival */
};

static int64_t delay_ns;
static double rate_bytes_s, queue_bytes, loss;

static void fail(const char *what) {
    fprintf(stderr, "slow_link: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int make_device(const char *netns, const char *name) {
    int space = open(netns, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) < 0) fail(netns);
    close(space);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0) fail("/dev/net/tun");
    return device;
}

static void take(struct line *line, const unsigned char *bytes, ssize_t size) {
    int64_t now = now_ns(), start = line->free_ns > now ? line->free_ns : now;
    if (loss > 0 && rand_r(&line->seed) / (RAND_MAX + 1.0) < loss) return;
    if ((double)(start - now) * rate_bytes_s / 1e9 + (double)size > queue_bytes) return;
    struct packet *packet = malloc(sizeof *packet + (size_t)size);
    if (packet == NULL) return;
    line->free_ns = start + (int64_t)((double)size * 1e9 / rate_bytes_s);
    packet->next = NULL;
    packet->due_ns = line->free_ns + delay_ns;
    packet->size = size;
    memcpy(packet->bytes, bytes, (size_t)size);
    if (line->first == NULL) line->first = packet;
    else line->last->next = packet;
    line->last = packet;
}

static void give_due(struct line *line) {
    while (line->first != NULL && line->first->due_ns <= now_ns()) {
        struct packet *packet = line->first;
        line->first = packet->next;
        /* a device that is down takes nothing: lost, as on a real line */
        if (write(line->to, packet->bytes, (size_t)packet->size) < 0) {}
        free(packet);
    }
}

static void *carry(void *argument) {
    struct line *line = argument;
    static __thread unsigned char bytes[LARGEST_PACKET];
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        give_due(line);
        int taken = 0;
        for (; taken < BATCH; taken++) {
            ssize_t size = read(line->from, bytes, sizeof bytes);
            if (size <= 0) break;
            take(line, bytes, size);
        }
        if (taken == BATCH) continue;
        struct timespec wait, *limit = NULL;
        if (line->first != NULL) {
            int64_t left = line->first->due_ns - now_ns();
            if (left < 0) left = 0;
            wait.tv_sec = left / INT64_C(1000000000);
            wait.tv_nsec = left % INT64_C(1000000000);
            limit = &wait;
        }
        struct pollfd readable = {.fd = line->from, .events = POLLIN};
        /* a device that is down is ready at once, with an error */
        if (ppoll(&readable, 1, limit, NULL) > 0 && (readable.revents & POLLERR)) usleep(10000);
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 8) {
        fprintf(stderr, "slow_link: seven words are wanted\n");
        return 2;
    }
    delay_ns = atoll(words[4]) * 1000;
    rate_bytes_s = atof(words[5]);
    queue_bytes = atof(words[6]);
    loss = atof(words[7]) / 1e6;
    if (rate_bytes_s <= 0) return 2;
    /* its own waits would be delays that nobody asked for */
    setpriority(PRIO_PROCESS, 0, -15);
    int a = make_device(words[2], words[1]), b = make_device(words[3], words[1]);
    struct line there = {.from = a, .to = b, .seed = 1}, back = {.from = b, .to = a, .seed = 2};
    puts("ready");
    fflush(stdout);
    pthread_t other;
    if (pthread_create(&other, NULL, carry, &there) != 0) fail("thread");
    carry(&back);
}
