/* version.h - the release, as --version and packs show it. */
#ifndef OD_BASE_VERSION_H
#define OD_BASE_VERSION_H

#define OD_VERSION "0.2.0"

#endif
