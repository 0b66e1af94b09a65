/* For what is compiled for the host without a project. */
#include "gl_port_host.h"
