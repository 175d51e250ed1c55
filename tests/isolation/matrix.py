"""Who may reach what: each route and method with the status that each persona gets.

A row names a route, its methods (comma-separated; ANY stands for those without a row of their own) and the statuses,
one for each persona, or one for everybody. A method without a row must be refused: 401, 403, 404, 405 or the way to
sign-in. Requests carry no body: a persona that may write gets 422 (or the page again, 200), one that may not gets
403, or 404 as a stranger. A route of the URLconf without a row fails the tests, and so does a row without a route.

Personas: nobody (not signed in); alice owner, bob developer, carol viewer, bill billing, all of acme; mallory owner of
evil; root platform admin; akey and ekey, keys of acme and evil with every scope; proc, a process of the product.
"""

PERSONAS = ("nobody", "alice", "bob", "carol", "bill", "mallory", "root", "akey", "ekey", "proc")

MATRIX = """
# route and methods                                nobody alice bob carol bill mallory root akey ekey proc
health GET                                            200

# one's own account: django-allauth. A key is nobody here.
account_login GET,POST,PUT                            200   302 302   302  302     302  302  200  200  200
account_login ANY                                     405   302 302   302  302     302  302  405  405  405
account_signup ANY                                    200   302 302   302  302     302  302  200  200  200
account_logout GET                                    302   200 200   200  200     200  200  302  302  302
account_logout POST                                   302
account_inactive GET                                  200
account_reset_password GET,POST,PUT                   200
account_password_reset_completed GET                  200
account_reauthenticate GET,POST,PUT                   302   200 200   200  200     200  200  302  302  302
account_request_reauthentication_code GET,POST,PUT    302   200 200   200  200     200  200  302  302  302
account_change_password GET,POST,PUT                  302   200 200   200  200     200  200  302  302  302
account_email GET                                     302   200 200   200  200     200  200  302  302  302
account_email POST,PUT                                302
mfa_index GET                                         302   200 200   200  200     200  200  302  302  302
usersessions_list GET                                 302   200 200   200  200     200  200  302  302  302
usersessions_list POST,PUT                            302
console:account GET,POST                              302   200 200   200  200     200  200  302  302  302

# steps of a flow that nobody here has begun, or that want the password again: back to where it begins
account_confirm_reauthentication_code ANY             302
account_email_verification_sent ANY                   302
account_set_password ANY                              302
account_confirm_login_code ANY                        302
account_confirm_password_reset_code ANY               302
account_complete_password_reset ANY                   302
mfa_authenticate ANY                                  302
mfa_reauthenticate ANY                                302
mfa_activate_totp ANY                                 302
mfa_generate_recovery_codes ANY                       302
mfa_deactivate_totp ANY                               302   404 404   404  404     404  404  302  302  302
mfa_view_recovery_codes GET                           302   404 404   404  404     404  404  302  302  302
mfa_download_recovery_codes GET                       302   404 404   404  404     404  404  302  302  302

# the API: keys act in their tenant, people in the one they belong to; root belongs to none
api:me GET                                            401   200 200   200  200     200  404  200  200  401
api:keys GET                                          401   200 200   200  403     200  404  403  403  401
api:keys POST                                         401   422 422   403  403     422  404  403  403  401
api:key GET                                           401   200 200   200  403     404  404  403  403  401
api:key-revoke POST                                   401   200 200   403  403     404  404  403  403  401
api:key-roll POST                                     401   200 403   403  403     404  404  403  403  401
api:key-limits PUT                                    401   422 422   403  403     422  404  403  403  401
api:models GET                                        401   200 200   200  403     200  404  200  200  401
api:model GET                                         401   200 200   200  403     404  404  200  404  401
api:model-versions GET                                401   200 200   200  403     404  404  200  404  401
api:version GET                                       401   200 200   200  403     404  404  200  404  401
api:version DELETE                                    401   409 409   403  403     404  404  409  404  401
api:version-archive POST                              401   200 200   403  403     404  404  200  404  401
api:version-diff GET                                  401   422 422   422  403     404  404  422  404  401
api:uploads POST                                      401   422 422   403  403     422  404  422  422  401
api:upload GET                                        401   200 200   200  403     404  404  200  404  401
api:upload DELETE                                     401   204 204   403  403     404  404  204  404  401
api:upload-parts POST                                 401   422 422   403  403     422  404  422  422  401
api:upload-part PUT                                   403
api:upload-complete POST                              401   422 422   403  403     404  404  422  404  401
api:storage GET                                       401   200 200   200  403     200  404  200  200  401
api:aliases GET                                       401   200 200   200  403     404  404  200  404  401
api:alias PUT                                         401   422 422   403  403     422  404  422  422  401
api:alias DELETE                                      401   204 204   403  403     404  404  204  404  401
api:deployments GET                                   401   200 200   200  403     200  404  200  200  401
api:deployments POST                                  401   422 422   403  403     422  404  422  422  401
api:deployment GET                                    401   200 200   200  403     404  404  200  404  401
api:deployment PATCH                                  401   422 422   403  403     422  404  422  422  401
api:deployment DELETE                                 401   204 204   403  403     404  404  204  404  401
api:pause POST                                        401   200 200   403  403     404  404  200  404  401
api:resume POST                                       401   409 409   403  403     404  404  409  404  401
api:replicas GET                                      401   200 200   200  403     404  404  200  404  401
api:events GET                                        401   200 200   200  403     404  404  200  404  401
api:costs GET                                         401   200 200   200  403     404  404  200  404  401
api:isolation GET                                     401   200 200   200  403     404  404  200  404  401
api:shares GET                                        401   200 200   200  403     404  404  200  404  401
api:shares PUT                                        401   422 422   403  403     422  404  422  422  401
api:cache-rotate POST                                 401   200 200   403  403     404  404  200  404  401
api:usage GET                                         401   200 200   200  200     200  404  200  200  401
api:usage-month GET                                   401   200 200   200  200     200  404  200  200  401
api:requests GET                                      401   200 200   200  403     200  404  200  200  401
api:request GET                                       401   200 200   200  403     404  404  200  404  401
api:rollouts GET                                      401   200 200   200  403     200  404  200  200  401
api:rollouts POST                                     401   422 422   403  403     422  404  422  422  401
api:rollout GET                                       401   200 200   200  403     404  404  200  404  401
api:rollout-start POST                                401   422 422   403  403     422  404  422  422  401
api:rollout-pause POST                                401   422 422   403  403     422  404  422  422  401
api:rollout-resume POST                               401   422 422   403  403     422  404  422  422  401
api:rollout-abort POST                                401   422 422   403  403     422  404  422  422  401
api:rollout-approve POST                              401   422 403   403  403     422  404  403  403  401
api:rollout-roll-back POST                            401   200 200   403  403     404  404  200  404  401
api:webhooks GET                                      401   200 200   403  403     200  404  403  403  401
api:webhooks POST                                     401   422 422   403  403     422  404  403  403  401
api:webhook GET                                       401   200 200   403  403     404  404  403  403  401
api:webhook PATCH                                     401   422 422   403  403     422  404  403  403  401
api:webhook DELETE                                    401   204 204   403  403     404  404  403  403  401
api:webhook-rotate POST                               401   200 200   403  403     404  404  403  403  401
api:webhook-test POST                                 401   202 202   403  403     404  404  403  403  401
api:webhook-deliveries GET                            401   200 200   403  403     404  404  403  403  401
api:webhook-resend POST                               401   202 202   403  403     404  404  403  403  401

# the platform's API: people only
api:platform-tenants GET                              401   404 404   404  404     404  200  404  404  401
api:platform-limits PUT                               401   404 404   404  404     404  422  404  404  401
api:platform-storage PUT                              401   404 404   404  404     404  422  404  404  401
api:platform-serving PUT                              401   404 404   404  404     404  422  404  404  401
api:platform-rollouts GET                             401   404 404   404  404     404  200  404  404  401
api:platform-rollout GET                              401   404 404   404  404     404  200  404  404  401
api:platform-rollout-approve POST                     401   404 404   404  404     404  422  404  404  401
api:platform-rollout-roll-back POST                   401   404 404   404  404     404  200  404  404  401
api:platform-freeze GET                               401   404 404   404  404     404  200  404  404  401
api:platform-freeze PUT                               401   404 404   404  404     404  422  404  404  401
api:platform-freeze DELETE                            401   404 404   404  404     404  409  404  404  401
api:platform-fleet GET                                401   404 404   404  404     404  200  404  404  401
api:platform-grant PUT                                401   404 404   404  404     404  422  404  404  401
api:platform-grant DELETE                             401   404 404   404  404     404  409  404  404  401
api:platform-cache-rotate POST                        401   404 404   404  404     404  200  404  404  401

# the link of an invitation is for whoever has it; it is taken by the address that was invited, which none of these has
console:invitation GET                                200
console:invitation POST                               200   403 403   403  403     403  403  200  200  200

# the console: people only; a key is nobody here. An empty form is a 422, a deployment that is not paused a 409
console:enter GET                                     302   302 302   302  302     302  302  302  302  302
console:theme POST                                    302
console:home GET                                      302   200 200   200  200     404  404  302  302  302
console:start GET                                     302   200 200   403  403     404  404  302  302  302
console:playground GET                                302   200 200   200  403     404  404  302  302  302
console:playground-stream POST                        302   200 200   200  403     404  404  302  302  302
console:models GET                                    302   200 200   200  403     404  404  302  302  302
console:model GET                                     302   200 200   200  403     404  404  302  302  302
console:alias-set POST                                302   422 422   403  403     404  404  302  302  302
console:alias-delete GET                              302   200 200   403  403     404  404  302  302  302
console:alias-delete POST                             302   422 422   403  403     404  404  302  302  302
console:version GET                                   302   200 200   200  403     404  404  302  302  302
console:version-archive GET                           302   200 200   403  403     404  404  302  302  302
console:version-archive POST                          302   422 422   403  403     404  404  302  302  302
console:upload-new GET                                302   200 200   403  403     404  404  302  302  302
console:upload GET                                    302   200 200   403  403     404  404  302  302  302
console:upload-abort POST                             302   302 302   403  403     404  404  302  302  302
console:deployments GET                               302   200 200   200  403     404  404  302  302  302
console:deployment GET                                302   200 200   200  403     404  404  302  302  302
console:isolation GET                                 302   200 200   200  403     404  404  302  302  302
console:isolation-empty-cache POST                    302   302 302   403  403     404  404  302  302  302
console:deployment-pause GET                          302   200 200   403  403     404  404  302  302  302
console:deployment-pause POST                         302   422 422   403  403     404  404  302  302  302
console:deployment-settings GET                       302   200 200   403  403     404  404  302  302  302
console:deployment-settings POST                      302   422 422   403  403     404  404  302  302  302
console:deployment-new GET                            302   200 200   403  403     404  404  302  302  302
console:deployment-new POST                           302   422 422   403  403     404  404  302  302  302
console:deployment-resume POST                        302   409 409   403  403     404  404  302  302  302
console:rollout-new GET                               302   200 200   403  403     404  404  302  302  302
console:rollout-new POST                              302   422 422   403  403     404  404  302  302  302
console:rollouts GET                                  302   200 200   200  403     404  404  302  302  302
console:rollout GET                                   302   200 200   200  403     404  404  302  302  302
console:rollout POST                                  302   422 422   403  403     404  404  302  302  302
console:rollout-approve GET,POST                      302   409 403   403  403     404  404  302  302  302
console:rollout-roll-back GET                         302   200 200   403  403     404  404  302  302  302
console:rollout-roll-back POST                        302   302 302   403  403     404  404  302  302  302
console:approvals GET                                 302   200 403   403  403     404  404  302  302  302
console:keys GET                                      302   200 200   200  403     404  404  302  302  302
console:key-new GET                                   302   200 200   403  403     404  404  302  302  302
console:key-new POST                                  302   422 422   403  403     404  404  302  302  302
console:key-roll GET                                  302   200 200   403  403     404  404  302  302  302
console:key-roll POST                                 302   201 403   403  403     404  404  302  302  302
console:key-revoke GET                                302   200 200   403  403     404  404  302  302  302
console:key-revoke POST                               302   422 422   403  403     404  404  302  302  302
console:requests GET                                  302   200 200   200  403     404  404  302  302  302
console:request GET                                   302   200 200   200  403     404  404  302  302  302
console:webhooks GET                                  302   200 200   403  403     404  404  302  302  302
console:webhook-new GET                               302   200 200   403  403     404  404  302  302  302
console:webhook-new POST                              302   422 422   403  403     404  404  302  302  302
console:webhook GET                                   302   200 200   403  403     404  404  302  302  302
console:webhook-change GET                            302   200 200   403  403     404  404  302  302  302
console:webhook-change POST                           302   422 422   403  403     404  404  302  302  302
console:webhook-rotate GET                            302   200 200   403  403     404  404  302  302  302
console:webhook-rotate POST                           302   201 201   403  403     404  404  302  302  302
console:webhook-switch POST                           302   302 302   403  403     404  404  302  302  302
console:webhook-test POST                             302   302 302   403  403     404  404  302  302  302
console:webhook-resend POST                           302   302 302   403  403     404  404  302  302  302
console:webhook-delete GET                            302   200 200   403  403     404  404  302  302  302
console:webhook-delete POST                           302   422 422   403  403     404  404  302  302  302
console:usage GET                                     302   200 200   200  200     404  404  302  302  302
console:members GET                                   302   200 200   200  200     404  404  302  302  302
console:member-leave GET                              302   200 200   200  200     404  404  302  302  302
console:member-leave POST                             302   422 422   422  422     404  404  302  302  302
console:invitation-revoke POST                        302   302 403   403  403     404  404  302  302  302
console:audit GET                                     302   200 200   403  403     404  404  302  302  302

# what wants the password again: who may do it at all is sent there first
console:version-delete GET,POST                       302   302 302   403  403     404  404  302  302  302
console:deployment-delete GET,POST                    302   302 302   403  403     404  404  302  302  302
console:member-invite GET,POST                        302   302 403   403  403     404  404  302  302  302
console:member-role GET,POST                          302   302 403   403  403     404  404  302  302  302
console:member-remove GET,POST                        302   302 403   403  403     404  404  302  302  302

# the console's platform pages
console:fleet GET                                     302   404 404   404  404     404  200  302  302  302
console:budgets GET                                   302   404 404   404  404     404  200  302  302  302
console:budget-share GET                              302   404 404   404  404     404  200  302  302  302
console:budget-share POST                             302   404 404   404  404     404  422  302  302  302
console:budget-unshare POST                           302   404 404   404  404     404  404  302  302  302
console:platform-isolation GET                        302   404 404   404  404     404  200  302  302  302
console:warm-pool GET                                 302   404 404   404  404     404  200  302  302  302
console:platform-rollouts GET                         302   404 404   404  404     404  200  302  302  302
console:platform-rollout GET                          302   404 404   404  404     404  200  302  302  302
console:platform-rollout POST                         302   404 404   404  404     404  422  302  302  302
console:platform-rollout-approve GET,POST             302   404 404   404  404     404  409  302  302  302
console:platform-rollout-roll-back GET                302   404 404   404  404     404  200  302  302  302
console:platform-rollout-roll-back POST               302   404 404   404  404     404  302  302  302  302
console:platform-approvals GET                        302   404 404   404  404     404  200  302  302  302
console:rollouts-freeze GET                           302   404 404   404  404     404  200  302  302  302
console:rollouts-freeze POST                          302   404 404   404  404     404  422  302  302  302
console:rollouts-unfreeze POST                        302   404 404   404  404     404  409  302  302  302
console:prices GET                                    302   404 404   404  404     404  200  302  302  302
console:prices POST                                   302   404 404   404  404     404  422  302  302  302
console:platform-requests GET                         302   404 404   404  404     404  200  302  302  302
console:platform-request GET                          302   404 404   404  404     404  200  302  302  302
console:health GET                                    302   404 404   404  404     404  200  302  302  302
console:jobs GET                                      302   404 404   404  404     404  200  302  302  302
console:job GET                                       302   404 404   404  404     404  200  302  302  302
console:job-retry POST                                302   404 404   404  404     404  302  302  302  302
console:platform-audit GET                            302   404 404   404  404     404  200  302  302  302
console:audit-verify POST                             302   404 404   404  404     404  302  302  302  302
console:tenants GET                                   302   404 404   404  404     404  200  302  302  302
console:tenant-limits GET                             302   404 404   404  404     404  200  302  302  302
console:tenant-limits POST                            302   404 404   404  404     404  422  302  302  302
console:tenant-suspend GET                            302   404 404   404  404     404  200  302  302  302
console:tenant-suspend POST                           302   404 404   404  404     404  422  302  302  302
console:tenant-resume POST                            302   404 404   404  404     404  409  302  302  302

# the product's own processes; a body that is none is a 400 to them
api:internal-catalog GET                              401   401 401   401  401     401  401  401  401  200
api:internal-usage POST                               401   401 401   401  401     401  401  401  401  400
api:internal-replicas POST                            401   401 401   401  401     401  401  401  401  400
"""
