"""Several devices and processes as one: the mesh, how processes agree, and SIGTERM."""
