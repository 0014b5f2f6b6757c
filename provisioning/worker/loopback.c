/* A bind() that takes 127.0.0.1 where any address is asked for: mpi.py says what for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);
    union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; } own;
    if (!real)
        real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    if (address && size <= sizeof own) {
        memcpy(&own, address, size);
        if (own.any.sa_family == AF_INET && own.v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
            own.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return real(fd, &own.any, size);
        }
        if (own.any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&own.v6.sin6_addr)) {
            own.v6.sin6_addr = in6addr_loopback;
            return real(fd, &own.any, size);
        }
    }
    return real(fd, address, size);
}
